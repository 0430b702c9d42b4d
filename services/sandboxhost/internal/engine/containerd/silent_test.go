package containerd

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestTimedOut(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{context.DeadlineExceeded, true},
		{errgrpc.ToNative(status.Error(codes.DeadlineExceeded, "context deadline exceeded")), true},
		{errgrpc.ToNative(status.Error(codes.Unknown, "kill container: context deadline exceeded: unknown")), true},
		{fmt.Errorf("no such task: %w", errdefs.ErrNotFound), false},
		{context.Canceled, false},
	} {
		if got := timedOut(tt.err); got != tt.want {
			t.Errorf("%v: got %t, want %t", tt.err, got, tt.want)
		}
	}
}
