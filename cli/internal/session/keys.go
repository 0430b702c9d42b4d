package session

import (
	"errors"
	"io"
	"strings"

	"staddle.internal/kit/fault"
)

var (
	// ErrDetached is what Keys returns when the keys for that were typed.
	ErrDetached = errors.New("detached")
	// ErrNoEnd is what Keys returns when no more comes and yet nothing has ended.
	ErrNoEnd = errors.New("no more input")
)

// endOfText is what a person types for the end of input: Ctrl-D.
const endOfText = "\x04"

// Keys is what a person types for a terminal inside. The end of the input is typed as a person would: as
// Ctrl-D, twice where a line was begun, since the first only hands that over.
type Keys struct {
	from   io.Reader
	detach []byte
	typed  int    // of detach
	ready  []byte // not returned yet
	err    error  // behind that
	line   bool   // one was begun
	buf    [4 << 10]byte
}

// NewKeys reads from a stream until detach is typed; empty means never.
func NewKeys(from io.Reader, detach []byte) *Keys { return &Keys{from: from, detach: detach} }

// Read returns what was typed. A beginning of the keys for detaching waits for what comes next.
func (k *Keys) Read(p []byte) (int, error) {
	for len(k.ready) == 0 && k.err == nil {
		n, err := k.from.Read(k.buf[:])
		for _, b := range k.buf[:n] {
			k.take(b)
		}
		switch {
		case k.err != nil:
		case errors.Is(err, io.EOF):
			k.end()
		case err != nil:
			k.err = err
		}
	}
	if len(k.ready) == 0 {
		return 0, k.err
	}
	n := copy(p, k.ready)
	k.ready = k.ready[n:]
	return n, nil
}

func (k *Keys) take(b byte) {
	if k.err != nil { // detached
		return
	}
	if k.typed < len(k.detach) && b == k.detach[k.typed] {
		if k.typed++; k.typed == len(k.detach) {
			k.err = ErrDetached
		}
		return
	}
	held := k.typed
	k.typed = 0
	k.ready = append(k.ready, k.detach[:held]...)
	if held > 0 && b == k.detach[0] {
		k.take(b)
		return
	}
	k.ready = append(k.ready, b)
	k.line = b != '\n' && b != '\r'
}

func (k *Keys) end() {
	k.ready = append(k.ready, k.detach[:k.typed]...)
	k.ready = append(k.ready, endOfText...)
	if k.line {
		k.ready = append(k.ready, endOfText...)
	}
	k.err = ErrNoEnd
}

// ParseKeys reads keys like "ctrl-p,ctrl-q" or "a". Empty means none. Invalid for what is no key.
func ParseKeys(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var keys []byte
	for _, name := range strings.Split(text, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case ctrl && len(letter) == 1 && strings.Contains("@abcdefghijklmnopqrstuvwxyz[\\]^_", letter):
			keys = append(keys, strings.ToUpper(letter)[0]-'@')
		case !ctrl && len(name) == 1 && name[0] > ' ' && name[0] < 0x7f:
			keys = append(keys, name[0])
		default:
			return nil, fault.New(fault.Invalid, "%q is no key: write one character, or ctrl- and one of a to z @ [ \\ ] ^ _", name)
		}
	}
	return keys, nil
}
