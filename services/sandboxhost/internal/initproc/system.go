package initproc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"
)

const who = "staddle-init: "

// say tells people what went wrong, on the container's standard error.
func say(text string) { _, _ = os.Stderr.WriteString(who + text + "\n") }

// Said says whether an output begins with a message of this process.
func Said(output string) bool { return strings.HasPrefix(output, who) }

// notify delivers every signal that a process can take.
func notify() chan os.Signal {
	const room = 64
	signals := make(chan os.Signal, room)
	signal.Notify(signals)
	return signals
}

// readEnv reads the entries of a file: NAME=VALUE, each ended by a zero byte.
func readEnv(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxEnv+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(raw) > maxEnv {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxEnv)
	}
	return splitEnv(raw)
}

// splitEnv never repeats what it read in an error.
func splitEnv(raw []byte) ([]string, error) {
	var entries []string
	for len(raw) > 0 {
		entry, rest, ended := bytes.Cut(raw, []byte{0})
		if !ended || bytes.IndexByte(entry, '=') < 1 {
			return nil, fmt.Errorf("entry %d is not NAME=VALUE ended by a zero byte", len(entries)+1)
		}
		entries, raw = append(entries, string(entry)), rest
	}
	return entries, nil
}

// AppendEnv appends one entry as a file of environment has it.
func AppendEnv(to []byte, name string, value []byte) []byte {
	to = append(append(to, name...), '=')
	return append(append(to, value...), 0)
}

// isTerminal says whether a descriptor is a terminal.
func isTerminal(fd uintptr) bool {
	var termios syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&termios)))
	return errno == 0
}
