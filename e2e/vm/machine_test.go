//go:build vm

package vm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// bootLimit bounds a boot: seconds where the machine has a processor of its
	// own, a minute where many share it.
	bootLimit = 6 * time.Minute
	// bootTries is how long one question to a machine that boots may take.
	bootTries = 10 * time.Second
)

// machine is two disks, and the emulator that runs a kernel on them.
type machine struct {
	dir   string // its disks, its console, and the socket to its agent
	base  string // folder of kernel, initial file system and the disk below its own
	qemu  *exec.Cmd
	off   chan struct{} // closed once the emulator has ended
	agent *agent
}

// newMachine makes disks: one above the kept one, which takes all that is written,
// and one with what is tested, installed as a person would.
func newMachine() (*machine, error) {
	base, err := command("./build.sh")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/var/tmp", "stvm-")
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir, base: strings.TrimSpace(base)}
	if _, err := command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", m.base+"/root.img", m.path("root.qcow2")); err != nil {
		return m, err
	}
	return m, m.install()
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// install makes the disk that is /usr/local on the machine.
func (m *machine) install() error {
	dest := m.path("installed")
	version, err := os.ReadFile(m.base + "/systemd-version")
	if err != nil {
		return err
	}
	if _, err := command("env", "DESTDIR="+dest, "SYSTEMD_VERSION="+strings.TrimSpace(string(version)), "../../tools/install.sh", "install"); err != nil {
		return err
	}
	if err := probe(filepath.Join(dest, "usr/local/share/probe.tar")); err != nil {
		return err
	}
	if _, err := command("mke2fs", "-q", "-t", "ext4", "-d", dest+"/usr/local", m.path("local.img"), "512M"); err != nil {
		return err
	}
	return os.RemoveAll(dest)
}

// on gives the machine power, and returns when it has booted.
func (m *machine) on() error {
	m.qemu = exec.Command("qemu-system-x86_64",
		// One processor: with more the emulator sometimes runs into a place of the
		// kernel's code while another processor changes it, and the kernel panics.
		"-accel", "tcg,tb-size=1024", "-cpu", "max", "-smp", "1", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "file:"+m.path("console"),
		"-kernel", m.base+"/vmlinuz", "-initrd", m.base+"/initrd", "-append", "console=ttyS0 quiet loglevel=4 systemd.default_timeout_start_sec=900 systemd.default_device_timeout_sec=900",
		"-drive", "if=none,id=root,format=qcow2,file="+m.path("root.qcow2"), "-device", "virtio-blk-pci,drive=root",
		"-drive", "if=none,id=local,format=raw,readonly=on,file="+m.path("local.img"), "-device", "virtio-blk-pci,drive=local",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path="+m.path("agent"),
		"-device", "virtserialport,chardev=agent,name=agent")
	var said bytes.Buffer
	m.qemu.Stdout, m.qemu.Stderr = &said, &said
	// The emulator ends with the tests, however those end.
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := m.qemu.Start(); err != nil {
		return err
	}
	m.off = make(chan struct{})
	go func() { // ends with the emulator, for which cut waits
		_ = m.qemu.Wait()
		close(m.off)
	}()
	m.agent = &agent{socket: m.path("agent")}
	if err := m.booted(""); err != nil {
		select {
		case <-m.off:
			err = fmt.Errorf("%w\n%s", err, &said)
		default:
		}
		return err
	}
	return nil
}

// booted waits until the machine is up, in another boot than the one named.
func (m *machine) booted(before string) error {
	err := until(bootLimit, "the machine to boot", func() (bool, string) {
		id, err := m.bootID()
		return err == nil && id != before, fmt.Sprint(id, err)
	})
	if err != nil {
		return fmt.Errorf("%w\nconsole:\n%s", err, m.console())
	}
	r := m.agent.run(bootLimit, "systemctl is-system-running --wait")
	if state := strings.TrimSpace(r.text); state != "running" {
		return fmt.Errorf("the machine booted and is %s\n%s", state, m.agent.run(time.Minute, "systemctl list-units --failed --no-legend; systemctl status --no-pager --failed; journalctl -b -p warning --no-pager -n 50").text)
	}
	return nil
}

// bootID names the boot that the machine is in.
func (m *machine) bootID() (string, error) {
	r := m.agent.run(bootTries, "cat /proc/sys/kernel/random/boot_id")
	if r.code != 0 {
		m.agent.hangUp() // what was asked and not answered is not for the next boot
		return "", errors.New(r.text)
	}
	return strings.TrimSpace(r.text), nil
}

// reboot has the machine end in order and boot again.
func (m *machine) reboot() error {
	before, err := m.bootID()
	if err != nil {
		return err
	}
	if r := m.agent.run(time.Minute, "systemctl reboot --no-block"); r.code != 0 {
		return fmt.Errorf("reboot: %s", r.text)
	}
	return m.booted(before)
}

// cut takes the power away, at once: what the machine had not written to its disk
// is lost.
func (m *machine) cut() error {
	if m.qemu == nil {
		return nil
	}
	err := m.qemu.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-m.off
	m.agent.hangUp()
	m.qemu = nil
	return err
}

// remove cuts the power and removes the machine.
func (m *machine) remove() error { return errors.Join(m.cut(), os.RemoveAll(m.dir)) }

// console is the end of what the machine said before it had a journal.
func (m *machine) console() string {
	text, err := os.ReadFile(m.path("console"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// command runs a command on this side that has to succeed.
func command(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// until waits for a condition, and says in vain what was seen last.
func until(limit time.Duration, what string, ask func() (bool, string)) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := ask()
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited in vain, for %s, for %s; last seen: %s", limit, what, seen)
		}
		<-tick.C
	}
}
