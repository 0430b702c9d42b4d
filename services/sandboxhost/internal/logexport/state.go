package logexport

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"staddle.internal/kit/wholefile"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// state is how far an export of one attempt came, as a file beside the segments.
type state struct {
	// Stdout and Stderr are the offsets of the next bytes to export.
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
	// Done says that the attempt had ended and all of it was exported.
	Done bool `json:"done,omitempty"`
	// Inode of the file, and its length, that the offsets are true of. For OTLP there
	// is none.
	Inode  uint64 `json:"inode,omitempty"`
	Length int64  `json:"length,omitempty"`
	// Last is the time of the newest record in it.
	Last time.Time `json:"last,omitzero"`
}

func (s state) at() offsets { return offsets{s.Stdout, s.Stderr} }

func (s *state) set(at offsets) { s.Stdout, s.Stderr = at[0], at[1] }

// note is where the state of one attempt is kept. It goes with the output, wherever that
// is by now.
type note struct {
	source Source
	of     logs.Attempt
	file   string
}

// in calls f with the path of the file, again if it was moved meanwhile.
func (n note) in(f func(path string) error) error {
	for {
		dir := n.source.AttemptDir(n.of)
		err := f(filepath.Join(dir, n.file))
		if !errors.Is(err, os.ErrNotExist) || dir == n.source.AttemptDir(n.of) {
			return err
		}
	}
}

// load reads a state, and says whether there is one.
func (n note) load() (state, bool, error) {
	var raw []byte
	var path string
	err := n.in(func(at string) (err error) {
		path = at
		raw, err = os.ReadFile(path)
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return state{}, false, nil
	}
	if err != nil {
		return state{}, false, fmt.Errorf("read how far an export came: %w", err)
	}
	var s state
	if err := json.Unmarshal(raw, &s); err != nil || s.Stdout < 0 || s.Stderr < 0 || s.Length < 0 {
		return state{}, false, fmt.Errorf("read how far an export came: %s is damaged: remove it, and all that is kept is exported again", path)
	}
	return s, true, nil
}

func (n note) save(s state) error {
	return n.in(func(path string) error {
		return wholefile.Replace(path, 0o600, func(f *os.File) error { return json.NewEncoder(f).Encode(s) })
	})
}
