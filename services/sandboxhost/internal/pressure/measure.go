package pressure

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procFiles reads what the kernel says of the machine, below /proc.
type procFiles string

// MemoryOf reads the memory of a machine, below proc, which is /proc.
func MemoryOf(proc string) (MemoryUse, error) { return procFiles(proc).memory() }

// TasksOf counts the tasks of a machine, below proc, which is /proc.
func TasksOf(proc string) (PIDUse, error) { return procFiles(proc).tasks() }

// memory reads what is available, and how long all waited for it.
func (p procFiles) memory() (MemoryUse, error) {
	use := MemoryUse{Stall: -1}
	raw, err := os.ReadFile(filepath.Join(string(p), "meminfo"))
	if err != nil {
		return use, fmt.Errorf("measure memory: %w", err)
	}
	if use.Total, err = kibibytes(raw, "MemTotal"); err != nil {
		return use, err
	}
	if use.Available, err = kibibytes(raw, "MemAvailable"); err != nil {
		return use, err
	}
	raw, err = os.ReadFile(p.pressure("memory"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return use, nil // this kernel does not measure it, or was told not to
	}
	if err != nil {
		return use, fmt.Errorf("measure stalls for memory: %w", err)
	}
	use.Stall, err = stall(raw)
	return use, err
}

// pressure is where the kernel says how long all waited for something.
func (p procFiles) pressure(what string) string { return filepath.Join(string(p), "pressure", what) }

// kibibytes reads one line of meminfo, in bytes.
func kibibytes(raw []byte, name string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != name+":" {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("measure memory: read %s: %w", name, err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("measure memory: the kernel does not say %s", name)
}

// stall reads the share of ten seconds in which everything waited.
func stall(raw []byte) (float64, error) {
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "full" {
			continue
		}
		share, err := strconv.ParseFloat(strings.TrimPrefix(fields[1], "avg10="), 64)
		if err != nil {
			return -1, fmt.Errorf("measure stalls for memory: %w", err)
		}
		return share, nil
	}
	return -1, errors.New("measure stalls for memory: the kernel does not say it in full")
}

// tasks reads how many there are in the whole machine, and can be.
func (p procFiles) tasks() (PIDUse, error) {
	use := PIDUse{Of: "this machine"}
	raw, err := os.ReadFile(filepath.Join(string(p), "loadavg"))
	if err != nil {
		return use, fmt.Errorf("count tasks: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 4 {
		return use, fmt.Errorf("count tasks: %q is no load", raw)
	}
	_, total, _ := strings.Cut(fields[3], "/")
	if use.Now, err = strconv.ParseInt(total, 10, 64); err != nil {
		return use, fmt.Errorf("count tasks: %w", err)
	}
	for _, file := range []string{"pid_max", "threads-max"} {
		raw, err := os.ReadFile(filepath.Join(string(p), "sys", "kernel", file))
		if err != nil {
			return use, fmt.Errorf("count tasks: %w", err)
		}
		most, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return use, fmt.Errorf("count tasks: read %s: %w", file, err)
		}
		if use.Most == 0 || most < use.Most {
			use.Most = most
		}
	}
	return use, nil
}
