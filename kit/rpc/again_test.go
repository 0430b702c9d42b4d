package rpc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/fault"
)

func TestAgain_OnlyWhatWasCutOffAndMayBeRepeated(t *testing.T) {
	cut := fault.New(fault.Unavailable, "connection reset")
	gone, leave := context.WithCancel(t.Context())
	leave()
	tests := []struct {
		name, method string
		ctx          context.Context
		begun        bool
		first        error
		calls        int
		err          error
	}{
		{"cut off", "/s/Get", t.Context(), true, cut, 2, nil},
		{"cut off, not to be repeated", "/s/Change", t.Context(), true, cut, 1, cut},
		{"no answer had begun", "/s/Get", t.Context(), false, cut, 1, cut},
		{"an answer that says no", "/s/Get", t.Context(), true, fault.New(fault.NotFound, "none"), 1, fault.NotFound},
		{"the caller is gone", "/s/Get", gone, true, cut, 1, cut},
		{"fine", "/s/Get", t.Context(), true, nil, 1, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			invoker := func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
				calls++
				for _, opt := range opts {
					if h, ok := opt.(grpc.HeaderCallOption); ok && tt.begun {
						*h.HeaderAddr = metadata.MD{}
					}
				}
				if calls == 1 {
					return tt.first
				}
				return nil
			}
			err := again(map[string]method{"/s/Get": {repeatable: true}, "/s/Change": {}})(tt.ctx, tt.method, nil, nil, nil, invoker)
			if calls != tt.calls || !errors.Is(err, tt.err) {
				t.Errorf("got %d calls and %v, want %d and %v", calls, err, tt.calls, tt.err)
			}
		})
	}
}
