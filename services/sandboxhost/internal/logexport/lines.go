package logexport

import (
	"bytes"
	"time"
	"unicode/utf8"

	"staddle.internal/services/sandboxhost/internal/logs"
)

// record is a line of one stream, or a piece of one.
type record struct {
	stderr bool
	offset int64     // of its first byte in the stream
	at     time.Time // about when that was written; zero if that was lost
	text   []byte    // without the end of the line; valid until take returns
	whole  bool      // the end of a line follows the text
}

// next is the offset of the byte behind it.
func (r record) next() int64 {
	n := r.offset + int64(len(r.text))
	if r.whole {
		n++
	}
	return n
}

// lines cuts one stream into records. Where it cuts depends on nothing but the bytes
// from where it began, so that who begins again between two records gets the same.
type lines struct {
	stderr bool
	most   int // bytes of text in one record
	take   func(record) error

	pending []byte // has no end yet
	offset  int64  // of the first byte of pending
	at      time.Time
}

// add goes on with a chunk. What was pending before a gap has no end any more.
func (l *lines) add(c logs.Chunk) error {
	if c.Offset != l.offset+int64(len(l.pending)) {
		if err := l.flush(); err != nil {
			return err
		}
		l.offset = c.Offset
	}
	for data := c.Data; len(data) > 0; {
		if len(l.pending) == 0 {
			l.at = c.At
		}
		n, ended := l.most+1-len(l.pending), false
		if i := bytes.IndexByte(data[:min(n, len(data))], '\n'); i >= 0 {
			n, ended = i, true
		}
		n = min(n, len(data))
		l.pending, data = append(l.pending, data[:n]...), data[n:]
		switch {
		case ended:
			data = data[1:]
			if err := l.give(len(l.pending), true); err != nil {
				return err
			}
		case len(l.pending) > l.most:
			if err := l.give(cut(l.pending, l.most), false); err != nil {
				return err
			}
			l.at = c.At // what is left are a few bytes of the end
		}
	}
	return nil
}

// flush gives what is pending: there will be no end of it.
func (l *lines) flush() error {
	if len(l.pending) == 0 {
		return nil
	}
	return l.give(len(l.pending), false)
}

// give hands out the first n bytes of what is pending.
func (l *lines) give(n int, whole bool) error {
	r := record{stderr: l.stderr, offset: l.offset, at: l.at, text: l.pending[:n], whole: whole}
	if err := l.take(r); err != nil {
		return err
	}
	l.offset = r.next()
	l.pending = append(l.pending[:0], l.pending[n:]...)
	return nil
}

// cut is where text of more than most bytes is cut: at most, or before the character
// that goes beyond it.
func cut(text []byte, most int) int {
	for n := most; n > most-utf8.UTFMax && n > 0; n-- {
		if utf8.RuneStart(text[n]) {
			return n
		}
	}
	return most // it is no UTF-8
}
