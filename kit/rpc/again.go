package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/fault"
)

// again repeats, once, a call that was cut off in the middle of its answer, as
// happens when a server is killed: the library repeats only what has no answer at
// all. It does so for calls that the contracts call repeatable.
func again(methods map[string]method) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, full string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !methods[full].repeatable {
			return invoker(ctx, full, req, reply, cc, opts...)
		}
		var begun metadata.MD // what an answer begins with
		err := invoker(ctx, full, req, reply, cc, append(opts, grpc.Header(&begun))...)
		if !errors.Is(err, fault.Unavailable) || begun == nil || ctx.Err() != nil {
			return err
		}
		return invoker(ctx, full, req, reply, cc, opts...)
	}
}
