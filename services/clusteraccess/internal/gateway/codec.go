package gateway

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// message is one message as it came, never looked into.
type message struct{ data mem.BufferSlice }

// free gives back the buffers of a message that was not sent.
func (m *message) free() {
	m.data.Free()
	m.data = nil
}

// raw passes messages through as they are.
type raw struct{}

// Name is what content types say. Every server of ours reads it.
func (raw) Name() string { return "proto" }

// Marshal hands the buffers of a message over.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("encode %T: only what came in is passed on", v)
	}
	data := m.data
	m.data = nil
	return data, nil
}

// Unmarshal keeps the buffers, which are freed after it returns.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("decode %T: only what came in is passed on", v)
	}
	data.Ref()
	m.data = data
	return nil
}
