package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// healLimit bounds talking to a shim.
const healLimit = 2 * time.Second

// heal frees an id that containerd has lost half of: it says that there is no
// task, and that there is one. Its shim is told to end, which containerd notices.
// A shim that has other containers does not end; then the next attempt, which has
// another id, is not in the way.
func (e *Engine) heal(ctx context.Context, containerID string) error {
	bundle, err := e.bundle(containerID)
	if err != nil {
		return fmt.Errorf("heal container %s: %w", containerID, err)
	}
	raw, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return fmt.Errorf("heal container %s: %w", containerID, err)
	}
	var bootstrap struct {
		Address string `json:"address"`
	}
	if err := json.Unmarshal(raw, &bootstrap); err != nil {
		return fmt.Errorf("heal container %s: read %s: %w", containerID, bundle, err)
	}
	path := strings.TrimPrefix(bootstrap.Address, "unix://")
	conn, err := net.DialTimeout("unix", path, healLimit)
	if err != nil {
		return fault.New(fault.Unavailable, "heal container %s: its shim does not answer: %w", containerID, err)
	}
	client := ttrpc.NewClient(conn)
	ctx, cancel := context.WithTimeout(ctx, healLimit)
	defer cancel()
	_, err = taskv3.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv3.ShutdownRequest{ID: containerID})
	if errors.Is(err, ttrpc.ErrClosed) {
		err = nil // it ended before it answered
	}
	if err := errors.Join(err, client.Close()); err != nil {
		return fault.New(fault.Unavailable, "heal container %s: end its shim: %w", containerID, err)
	}
	e.log.Warn("half lost container healed", logging.Component(containerID))
	return nil
}

// bundle finds the folder that containerd keeps of a task: the shims of the same
// containerd and namespace work in such folders.
func (e *Engine) bundle(containerID string) (string, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err != nil {
			continue // it ended
		}
		if !isShim(strings.Split(string(raw), "\x00"), e.cfg.Namespace, e.cfg.Address) {
			continue
		}
		dir, err := os.Readlink(filepath.Join("/proc", p.Name(), "cwd"))
		if err != nil {
			continue
		}
		bundle := filepath.Join(filepath.Dir(strings.TrimSuffix(dir, " (deleted)")), containerID)
		if _, err := os.Stat(bundle); err == nil {
			return bundle, nil
		}
	}
	return "", fault.New(fault.Unavailable, "no shim of this node has a folder of it")
}

// isShim recognises a shim of one containerd and namespace by its arguments.
func isShim(args []string, namespace, address string) bool {
	if len(args) == 0 || filepath.Base(args[0]) != "containerd-shim-runc-v2" {
		return false
	}
	value := func(flag string) string {
		for i, a := range args[:len(args)-1] {
			if strings.TrimLeft(a, "-") == flag {
				return args[i+1]
			}
		}
		return ""
	}
	return value("namespace") == namespace && value("address") == address
}
