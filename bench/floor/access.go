package floor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
)

// Exec runs one more process in the container, removes it when it has ended, and returns
// how long its first byte of output took. A process is given FIFOs and nothing more.
func (s *Started) Exec(ctx context.Context, args ...string) (took time.Duration, err error) {
	ctx = s.floor.ctx(ctx)
	spec, err := s.container.Spec(ctx)
	if err != nil {
		return 0, err
	}
	process := *spec.Process
	process.Args = args
	first := &firstByte{began: time.Now(), at: make(chan time.Duration, 1)}
	id := fmt.Sprintf("exec-%d", s.floor.count.Add(1))
	p, err := s.task.Exec(ctx, id, &process, cio.NewCreator(cio.WithStreams(nil, first, io.Discard)))
	if err != nil {
		return 0, err
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case took = <-first.at:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	<-exit
	_, err = p.Delete(ctx)
	return took, err
}

// firstByte tells when it is written to.
type firstByte struct {
	began time.Time
	at    chan time.Duration
	over  bool
}

// Write takes anything.
func (f *firstByte) Write(b []byte) (int, error) {
	if !f.over {
		f.over = true
		f.at <- time.Since(f.began)
	}
	return len(b), nil
}

// Flood has a container print so many bytes to a file that its shim writes, and returns
// how long that took, from the start of its process to its end.
func (f *Floor) Flood(ctx context.Context, size int64) (took time.Duration, err error) {
	log := filepath.Join(f.dir, "flood.log")
	s, err := f.make(f.ctx(ctx), cio.LogFile(log), "flood", fmt.Sprint(size), "0")
	if err != nil {
		return 0, err
	}
	exit, err := s.task.Wait(f.ctx(ctx))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.task.Start(f.ctx(ctx)); err != nil {
		return 0, err
	}
	var status containerd.ExitStatus
	select {
	case status = <-exit:
		took = time.Since(began)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if code, _, err := status.Result(); err != nil || code != 0 {
		return 0, errors.Join(err, fmt.Errorf("it ended with code %d", code))
	}
	written, err := os.Stat(log)
	if err == nil && written.Size() != size {
		err = fmt.Errorf("%d bytes are in the file, want %d", written.Size(), size)
	}
	return took, errors.Join(err, s.remove(f.ctx(ctx)), os.Remove(log))
}
