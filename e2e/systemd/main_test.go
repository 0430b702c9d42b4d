//go:build systemd

package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/e2e/image"
)

// probeImage is the workload of the tests.
const probeImage = "staddle.local/probe:1"

// shared is the machine of all tests of this package.
var shared *machine

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) (code int) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests boot a machine in namespaces: run make test-systemd, as root or with sudo")
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
	if err = errors.Join(err, probe(shared), setUp(shared)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// probe puts the archive with the workload on the machine.
func probe(m *machine) error {
	program := filepath.Join(m.root, "tmp", "probe")
	if err := image.Build("../cmd/probe", program); err != nil {
		return err
	}
	img, err := image.FromProgram(program)
	if err != nil {
		return err
	}
	return image.WriteArchive(img, probeImage, m.path("/usr/local/share/probe.tar"))
}

// setUp does what the guide says after make install, and has the target start with
// the machine from then on.
func setUp(m *machine) error {
	if err := m.on(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"systemd-sysusers"},
		{"systemd-tmpfiles", "--create", "staddle.conf"},
		{"systemctl", "daemon-reload"},
		{"systemctl", "enable", "staddle.target", "staddle-coordinator.service"},
		{"systemctl", "start", "staddle.target"},
		{"staddle", "image", "import", "/usr/local/share/probe.tar"},
	} {
		if r := m.run(args...); r.code != 0 {
			return fmt.Errorf("%v: exit code %d\n%s\n%s", args, r.code, r.text, m.run("journalctl", "--no-pager", "--lines=100").text)
		}
	}
	return nil
}
