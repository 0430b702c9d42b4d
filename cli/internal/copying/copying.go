// Package copying owns the near end of a copy into or out of a container: tar streams
// between files of this machine and those of a sandbox.
//
// What comes out of a sandbox is not trusted: nothing of it is written outside of the
// place that the person named. A stream that breaks is a failure, and leaves no file half. It must
// never decide what to copy. In the trail it is the end of "staddle cp".
package copying

import (
	"context"
	"errors"
	"io"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
)

// chunk is how much goes into one message, by the contract.
const chunk = 32 << 10

// Out writes what is at a path of a container as a tar stream. An error says that it is not
// whole.
func Out(ctx context.Context, client sandboxhostv1.CopyServiceClient, req *sandboxhostv1.CopyOutRequest, to io.Writer) (*sandboxhostv1.CopyReport, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := client.CopyOut(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		m, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, fault.New(fault.Unavailable, "the connection ended before the copy did")
		case err != nil:
			return nil, err
		case m.GetDone() != nil:
			return m.GetDone(), nil
		}
		if _, err := to.Write(m.GetData()); err != nil {
			return nil, err
		}
	}
}

// In sends a tar stream to a container. An error of from calls the copy off.
func In(ctx context.Context, client sandboxhostv1.CopyServiceClient, start *sandboxhostv1.CopyInStart, from io.Reader) (*sandboxhostv1.CopyReport, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // calls off what is not whole
	st, err := client.CopyIn(ctx)
	if err != nil {
		return nil, err
	}
	err = st.Send(&sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_Start{Start: start}})
	buf := make([]byte, chunk)
	for err == nil {
		n, readErr := from.Read(buf)
		if n > 0 {
			err = st.Send(&sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_Data{Data: buf[:n]}})
		}
		if errors.Is(readErr, io.EOF) && err == nil {
			err = st.Send(&sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_DataEnd{DataEnd: true}})
			break
		}
		if readErr != nil && err == nil {
			return nil, readErr
		}
	}
	if err != nil && !errors.Is(err, io.EOF) { // then the answer says why
		return nil, err
	}
	resp, err := st.CloseAndRecv()
	if err != nil {
		return nil, err
	}
	return resp.GetReport(), nil
}
