package follow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// MaxLine is how long a line is shown as one; a longer one is shown in pieces of this.
const MaxLine = 1 << 20

// Format says how lines are shown.
type Format struct {
	// Prefix stands before each line.
	Prefix string
	// Times puts the time at which its first byte was read before each line.
	Times bool
	// JSON shows each line as an object; Prefix and Times do not count.
	JSON bool
	// Sandbox and Container are named in such an object.
	Sandbox, Container string
}

// lines takes the bytes of one stream and writes whole lines.
type lines struct {
	format Format
	stream string
	mu     *sync.Mutex // one line at a time, over all that write to the same place
	to     io.Writer

	held    []byte    // of a line that has no end yet
	at      time.Time // when the first byte of held was read
	offset  int64     // of the first byte of held
	next    int64     // of the byte behind held
	attempt uint64    // that wrote it
}

// write takes a chunk.
func (l *lines) write(chunk *sandboxhostv1.ReadLogsResponse) error {
	var at time.Time
	if chunk.GetReadAt() != nil {
		at = chunk.GetReadAt().AsTime()
	}
	offset := chunk.GetOffset()
	if offset != l.next { // what lies between is lost
		if err := l.flush(); err != nil {
			return err
		}
	}
	l.attempt = chunk.GetAttempt()
	for data := chunk.GetData(); len(data) > 0; {
		if len(l.held) == 0 {
			l.at, l.offset = at, offset
		}
		n := bytes.IndexByte(data, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(data)
		}
		l.held = append(l.held, data[:n]...)
		data, offset = data[n:], offset+int64(n)
		l.next = offset
		if err := l.show(whole); err != nil {
			return err
		}
	}
	return nil
}

// show writes held if it is a whole line, and pieces of it while it is too long.
func (l *lines) show(whole bool) error {
	for len(l.held) > MaxLine {
		n := MaxLine
		for n > MaxLine-utf8.UTFMax && !utf8.RuneStart(l.held[n]) {
			n--
		}
		if err := l.put(l.held[:n], true); err != nil {
			return err
		}
		l.held, l.offset = append(l.held[:0], l.held[n:]...), l.offset+int64(n)
	}
	if !whole {
		return nil
	}
	err := l.put(l.held[:len(l.held)-1], false)
	l.held = l.held[:0]
	return err
}

// flush writes what has no end: nothing more of it will come.
func (l *lines) flush() error {
	if len(l.held) == 0 {
		return nil
	}
	err := l.put(l.held, true)
	l.held = l.held[:0]
	return err
}

// object is a line as JSON.
type object struct {
	Sandbox   string `json:"sandbox"`
	Container string `json:"container"`
	Attempt   uint64 `json:"attempt"`
	Stream    string `json:"stream"`
	Offset    int64  `json:"offset"`
	Time      string `json:"time,omitempty"`
	Text      string `json:"text"`
	// Bytes takes the place of Text where that would not be what was written.
	Bytes []byte `json:"bytes,omitempty"`
	// Partial says that no end of a line follows.
	Partial bool `json:"partial,omitempty"`
}

func (l *lines) put(text []byte, partial bool) error {
	var line []byte
	if l.format.JSON {
		o := object{
			Sandbox: l.format.Sandbox, Container: l.format.Container, Attempt: l.attempt, Stream: l.stream,
			Offset: l.offset, Time: timeOf(l.at), Partial: partial,
		}
		if utf8.Valid(text) {
			o.Text = string(text)
		} else {
			o.Bytes = text
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(o); err != nil {
			return fmt.Errorf("write line: %w", err)
		}
		line = b.Bytes()
	} else {
		line = append(line, l.format.Prefix...)
		if l.format.Times {
			line = fmt.Appendf(line, "%-30s ", timeOf(l.at))
		}
		line = append(append(line, text...), '\n')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.to.Write(line); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// timeOf is a time to the nanosecond, always as long. Empty if it was lost.
func timeOf(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05.000000000Z")
}
