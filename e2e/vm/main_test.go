//go:build vm

package vm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"staddle.internal/e2e/image"
)

// probeImage is the workload of the tests.
const probeImage = "staddle.local/probe:1"

// shared is the machine of all tests of this package.
var shared *machine

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) (code int) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make a root file system and boot it: run make test-vm, as root or with sudo")
		return 2
	}
	var err error
	shared, err = newMachine()
	if shared != nil {
		defer func() {
			if err := shared.remove(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err = setUp(shared); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// probe makes the archive with the workload.
func probe(archive string) error {
	dir, err := os.MkdirTemp("", "probe-")
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "probe")
	make := func() error {
		if err := image.Build("../cmd/probe", program); err != nil {
			return err
		}
		img, err := image.FromProgram(program)
		if err != nil {
			return err
		}
		return image.WriteArchive(img, probeImage, archive)
	}
	return errors.Join(make(), os.RemoveAll(dir))
}

// setUp does what the guide says after make install, and has the target start with
// the machine from then on.
func setUp(m *machine) error {
	if err := m.on(); err != nil {
		return err
	}
	r := m.agent.run(10*time.Minute, `set -e
		systemd-sysusers
		systemd-tmpfiles --create staddle.conf
		systemctl daemon-reload
		systemctl enable staddle.target staddle-coordinator.service
		systemctl start staddle.target
		staddle image import /usr/local/share/probe.tar`)
	if r.code != 0 {
		return fmt.Errorf("set up Staddle: exit code %d\n%s\n%s", r.code, r.text, m.agent.run(time.Minute, "journalctl --no-pager --lines=100").text)
	}
	return nil
}
