package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/bind"
	"staddle.internal/services/sandboxhost/internal/inlet"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// What a container mounts and we make lies in the folder of its sandbox that goes
// with the boot, below the id of the container; scratch volumes lie with what lasts.

func (e *Engine) places(c *container) places {
	dir := e.pins.Dir(c.uid)
	return places{
		init: e.cfg.Init, secrets: e.secrets.Container(c.uid, c.id),
		shm: e.pins.Shm(c.uid), etc: e.files(c.uid), scratch: e.scratch(c.uid),
		files: filepath.Join(dir, filesFolder, c.id), binds: filepath.Join(dir, bindsFolder, c.id),
	}
}

// stdin is the pipe of a container whose standard input is kept open.
func (e *Engine) stdin(c *container) string {
	return filepath.Join(e.pins.Dir(c.uid), stdinFolder, c.id)
}

// scratchRoot is the folder of the scratch volumes of all sandboxes, and scratch of
// those of one.
func (e *Engine) scratchRoot() string { return filepath.Join(e.cfg.Paths.Var(process), "scratch") }

func (e *Engine) scratch(uid id.Sandbox) string { return filepath.Join(e.scratchRoot(), uid.Lower()) }

// place makes what a container mounts. What an earlier try left is made anew, but
// for scratch volumes, which stay as they are.
func (e *Engine) place(c *container, spec *resourcev1.ContainerSpec, user specs.User) error {
	p := e.places(c)
	if err := e.checkInit(spec); err != nil {
		return fmt.Errorf("create container %s: %w", c.id, err)
	}
	for _, m := range spec.GetScratch() {
		if err := makeScratch(filepath.Join(p.scratch, m.GetVolume())); err != nil {
			return fmt.Errorf("make scratch volume %s of sandbox %s: %w", m.GetVolume(), c.uid, err)
		}
	}
	for i, f := range spec.GetFiles() {
		if err := writeConfig(filepath.Join(p.files, strconv.Itoa(i)), f, user); err != nil {
			return fmt.Errorf("write %s of container %s: %w", f.GetPath(), c.id, err)
		}
	}
	for i, m := range spec.GetHostMounts() {
		root, ok := e.cfg.Rules.HostRoot(m.GetHostPath())
		if !ok { // node.yaml was changed meanwhile
			return fault.WithReason(fault.New(fault.Denied, "mount %s for container %s: allow_host_paths in node.yaml does not list it",
				m.GetHostPath(), c.id), "HOST_PATH_NOT_ALLOWED")
		}
		if err := bind.Mount(root, m.GetHostPath(), filepath.Join(p.binds, strconv.Itoa(i))); err != nil {
			return fmt.Errorf("create container %s: %w", c.id, err)
		}
	}
	if err := e.placeSecrets(c, p, spec, user); err != nil {
		return fmt.Errorf("create container %s: %w", c.id, err)
	}
	if spec.GetStdin() {
		return e.makeStdin(c)
	}
	return nil
}

// displace undoes place, but for scratch volumes.
func (e *Engine) displace(c *container) error {
	p := e.places(c)
	err := errors.Join(bind.Clear(p.binds), os.RemoveAll(p.files), ignoreMissing(os.Remove(e.stdin(c))), e.inlets.Remove(e.inlet(c)),
		ignoreMissing(os.Remove(e.besideKillsFile(c))), os.RemoveAll(e.besideDir(c.uid, c.id, "")),
		e.secrets.RemoveContainer(c.uid, c.id))
	if err != nil {
		return fmt.Errorf("remove mounts of container %s: %w", c.id, err)
	}
	return nil
}

// makeScratch makes an empty folder that every user may write to. It appears whole
// or not at all, for what is there is never touched again.
func makeScratch(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temp := path + ".new" // no name of a volume has a dot
	if err := os.Mkdir(temp, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	const everybody = 0o777
	if err := os.Chmod(temp, everybody); err != nil {
		return err
	}
	if err := os.Lchown(temp, 0, 0); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// writeConfig writes a file for the user of a container.
func writeConfig(path string, f *resourcev1.ConfigFile, user specs.User) error {
	mode, err := modeOf(f.GetMode(), 0o444)
	if err != nil {
		return err
	}
	content := f.GetData()
	if len(content) == 0 {
		content = []byte(f.GetText())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	return writeFor(path, content, mode, user)
}

// modeOf reads permissions in octal digits; empty means usual.
func modeOf(digits string, usual os.FileMode) (os.FileMode, error) {
	if digits == "" {
		return usual, nil
	}
	mode, err := strconv.ParseUint(digits, 8, 12)
	if err != nil {
		return 0, fault.New(fault.Invalid, "read mode %q: %w", digits, err)
	}
	return os.FileMode(mode), nil
}

// writeFor writes a file that belongs to the user of a container.
func writeFor(path string, content []byte, mode os.FileMode, user specs.User) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil { // the process's mask does not count
		return err
	}
	return os.Lchown(path, int(user.UID), int(user.GID))
}

// makeStdin makes the pipe that the shim reads standard input from. The shim holds
// both of its ends, so that it is open, and empty, until somebody writes to it.
func (e *Engine) makeStdin(c *container) error {
	path := e.stdin(c)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make standard input of container %s: %w", c.id, err)
	}
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return fmt.Errorf("make standard input of container %s: %w", c.id, err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return fmt.Errorf("make standard input of container %s: %w", c.id, err)
	}
	return e.inlets.Remove(e.inlet(c))
}

// inlet is the way of input into a container.
func (e *Engine) inlet(c *container) inlet.Place {
	return inlet.Place{Container: c.id, Pipe: e.stdin(c)}
}

// scratchKept says whether a sandbox has scratch volumes.
func (e *Engine) scratchKept(uid id.Sandbox) (bool, error) {
	_, err := os.Lstat(e.scratch(uid))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for scratch volumes of sandbox %s: %w", uid, err)
	}
	return true, nil
}

// removeWritten removes all that lives as long as a sandbox: output, of which some may
// be kept under its name, scratch volumes and the values of its secrets.
func (e *Engine) removeWritten(uid id.Sandbox, name logs.Name) error {
	if err := e.logs.Remove(uid, name); err != nil {
		return err
	}
	if err := os.RemoveAll(e.scratch(uid)); err != nil {
		return fmt.Errorf("remove scratch volumes of sandbox %s: %w", uid, err)
	}
	return e.secrets.Remove(uid)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
