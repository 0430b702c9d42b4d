package rpc

import (
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// BenchmarkUnary compares a call through everything of this package with a bare
// call of grpc-go over the same kind of socket.
func BenchmarkUnary(b *testing.B) {
	ours, bare := ourConn(b), bareConn(b)
	b.Run("ours", func(b *testing.B) { measure(b, ours) })
	b.Run("bare", func(b *testing.B) { measure(b, bare) })
}

// BenchmarkUnaryRatio takes turns between the two, so that what else the machine
// does falls on both, and reports the medians.
func BenchmarkUnaryRatio(b *testing.B) {
	conns := []*grpc.ClientConn{ourConn(b), bareConn(b)}
	took := make([][]time.Duration, len(conns))
	for b.Loop() {
		for i, conn := range conns {
			begin := time.Now()
			if _, err := call(b.Context(), conn, "Read", "x"); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(begin))
		}
	}
	median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2].Nanoseconds()) / 1000 }
	ours, bare := median(took[0]), median(took[1])
	b.ReportMetric(ours, "ours-p50-us")
	b.ReportMetric(bare, "bare-p50-us")
	b.ReportMetric(ours/bare, "ratio")
}

func ourConn(b *testing.B) *grpc.ClientConn {
	n := setup{}.start(b)
	return dial(b, n.path, DialConfig{})
}

func bareConn(b *testing.B) *grpc.ClientConn {
	b.Helper()
	path := filepath.Join(shortDir(b), "s.sock")
	l, err := net.Listen("unix", path)
	must(b, err)
	server := grpc.NewServer()
	server.RegisterService(behaviour{}.desc(), nil)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }() // ends by Stop
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b, err)
	b.Cleanup(func() {
		must(b, conn.Close())
		server.Stop()
		must(b, <-done)
	})
	return conn
}

func measure(b *testing.B, conn *grpc.ClientConn) {
	for b.Loop() {
		if _, err := call(b.Context(), conn, "Read", "x"); err != nil {
			b.Fatal(err)
		}
	}
}
