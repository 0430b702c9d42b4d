// Package handover owns the state that one program of the supervisor leaves to the
// next one, when the process replaces its program in place.
//
// It is one sealed file in memory with a version of its format, named by a
// variable. It must never be guessed at: a version that is not known, or a field
// that is not, is refused, so that nothing of it is lost. In the trail it stands
// between two programs of one process.
package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
)

// Version of the format. It grows with each change of State: what a program does
// not know it must not take over. The version before is read as well; it has
// neither Program nor Trial.
const (
	Version = 2
	oldest  = 1
)

// EnvFD is the variable that names the file.
const EnvFD = "STADDLE_HANDOVER_FD"

// maxSize bounds what is read: thousands of stored files fit in.
const maxSize = 16 << 20

// State is everything that is handed over.
type State struct {
	Version int `json:"version"`
	// At is when it was written, as time since boot.
	At time.Duration `json:"at"`
	// Table are the states of the components as of At.
	Table machine.Record `json:"table"`
	// History is what happened until then.
	History supervise.HistoryRecord `json:"history"`
	// Children are their processes and open files.
	Children child.Handover `json:"children"`
	// Lock on the supervisor's data folder, and its listening Socket; 0 if it is to
	// make one.
	Lock   int `json:"lock"`
	Socket int `json:"socket"`
	// Program counts the programs of this process, from 1; it is that of the writer.
	Program uint32 `json:"program"`
	// Trial says that nothing of this is handed over: the files are stand-ins, and the
	// reader takes them over and serves, does nothing to anybody else, and is ended then.
	Trial bool `json:"trial"`
}

// Then is the time of the wall clock, as of now, at which it was written.
func (s State) Then() time.Time { return time.Now().Add(s.At - boottime.Now()) }

// FDs lists the files that must stay open.
func (s State) FDs() []int { return append(s.Children.FDs(), s.Lock, s.Socket) }

// Rehearsal returns the state with a stand-in for each file but Socket, which is
// left to the caller, and no lock. The files are for the process that is tried, from
// number first on; the caller closes them.
func (s State) Rehearsal(first int) (State, []*os.File, error) {
	s.Trial, s.Lock, s.Socket = true, 0, 0
	var files []*os.File
	var err error
	s.Children, files, err = s.Children.StandIns(first)
	return s, files, err
}

// Number returns the number of a file without taking it out of its non-blocking
// mode, which it shares with its copies, as File.Fd may.
func Number(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// Write puts the state into a sealed file in memory. The caller closes it.
func Write(s State) (*os.File, error) {
	s.Version, s.At = Version, boottime.Now()
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write handover: %w", err)
	}
	fd, err := unix.MemfdCreate("staddle-handover", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("write handover: %w", err)
	}
	f := os.NewFile(uintptr(fd), "handover")
	if _, err = f.Write(text); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write handover: %w", err), f.Close())
	}
	return f, nil
}

// Inherited returns the state that was left to this program, nil if there is none.
// It clears the variable and closes the file, so that no child finds either. What
// cannot be read is fault.Invalid.
func Inherited() (*State, error) {
	text, ok := os.LookupEnv(EnvFD)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(EnvFD); err != nil {
		return nil, fmt.Errorf("clear %s: %w", EnvFD, err)
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd <= 2 {
		return nil, fault.New(fault.Invalid, "read %s: %.40q is no number of an inherited file", EnvFD, text)
	}
	f := os.NewFile(uintptr(fd), "handover")
	s, err := read(f)
	return s, errors.Join(err, f.Close())
}

// read takes only a sealed file: one that nobody changes any more.
func read(f *os.File) (*State, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		return nil, fault.New(fault.Invalid, "read handover: the file is not sealed (%v)", err)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read handover: %w", err)
	}
	if len(text) > maxSize {
		return nil, fault.New(fault.Invalid, "read handover: it is larger than %d bytes", maxSize)
	}
	return decode(text)
}

func decode(text []byte) (*State, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fault.New(fault.Invalid, "read handover: %w", err)
	}
	if head.Version < oldest || head.Version > Version {
		return nil, fault.New(fault.Invalid, "read handover: it has version %d of the format, this program reads %d to %d", head.Version, oldest, Version)
	}
	s := State{Program: 1}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fault.New(fault.Invalid, "read handover: %w", err)
	}
	return &s, nil
}
