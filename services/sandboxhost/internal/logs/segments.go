package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// endOf is the offset behind the last byte that is kept.
func endOf(dir string) (int64, error) {
	starts, err := segments(dir)
	if err != nil || len(starts) == 0 {
		return 0, err
	}
	last := starts[len(starts)-1]
	info, err := os.Stat(segmentPath(dir, last))
	if errors.Is(err, os.ErrNotExist) {
		return last, nil // an empty one, closed meanwhile
	}
	if err != nil {
		return 0, fmt.Errorf("look at log segment: %w", err)
	}
	return last + info.Size(), nil
}

// segments lists the starts of the segments in dir, ascending.
func segments(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list log segments: %w", err)
	}
	var starts []int64
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), ".log")
		if !ok {
			continue
		}
		if start, err := strconv.ParseInt(digits, 10, 64); err == nil && start >= 0 {
			starts = append(starts, start)
		}
	}
	slices.Sort(starts)
	return starts, nil
}

func segmentPath(dir string, start int64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d.log", start))
}

func indexPath(dir string, start int64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d.index", start))
}

func removeSegment(dir string, start int64) error {
	return removeFiles(segmentPath(dir, start), indexPath(dir, start))
}

// look calls f with the folder that the stream is in by now, and which keeps its place
// meanwhile.
func (st *stream) look(f func(dir string) error) error {
	return st.store.within(st.key.uid, func(dir string) error { return f(st.key.below(dir)) })
}

// segments lists the starts of its segments, ascending.
func (st *stream) segments() (starts []int64, err error) {
	err = st.look(func(dir string) error {
		starts, err = segments(dir)
		return err
	})
	return starts, err
}

// keptEnd is the offset behind its last byte that is kept.
func (st *stream) keptEnd() (end int64, err error) {
	err = st.look(func(dir string) error {
		end, err = endOf(dir)
		return err
	})
	return end, err
}
