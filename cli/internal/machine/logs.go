package machine

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"time"
)

// tail returns the last lines of a file, at most n and at most 64 KiB, or why
// there are none.
func tail(path string, n int) string {
	lines, err := ending(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.Join(lines[max(len(lines)-n, 0):], []byte("\n")))
}

// cause returns what a process said last, and not before since, about why it
// failed; "" if it said nothing, or not in the form of our logs.
func cause(path string, since time.Time) string {
	lines, err := ending(path)
	if err != nil {
		return "" // tail, which is shown then, says so
	}
	for _, line := range slices.Backward(lines) {
		var entry struct {
			Time       time.Time
			Level, Err string
		}
		if json.Unmarshal(line, &entry) == nil && entry.Level == "ERROR" && entry.Err != "" && !entry.Time.Before(since) {
			return entry.Err
		}
	}
	return ""
}

// ending returns the last lines of a file, at most 64 KiB of them.
func ending(path string) ([][]byte, error) {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	return bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n")), err
}
