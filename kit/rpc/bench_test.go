package rpc

import (
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// BenchmarkUnary compares a call through everything of this package with a bare
// call of grpc-go over the same kind of socket.
func BenchmarkUnary(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		n := setup{}.start(b)
		measure(b, dial(b, n.path, DialConfig{}))
	})
	b.Run("bare", func(b *testing.B) {
		path := filepath.Join(shortDir(b), "s.sock")
		l, err := net.Listen("unix", path)
		must(b, err)
		server := grpc.NewServer()
		server.RegisterService(behaviour{}.desc(), nil)
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }() // ends by Stop
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(b, err)
		measure(b, conn)
		must(b, conn.Close())
		server.Stop()
		must(b, <-done)
	})
}

func measure(b *testing.B, conn *grpc.ClientConn) {
	for b.Loop() {
		if _, err := call(b.Context(), conn, "Read", "x"); err != nil {
			b.Fatal(err)
		}
	}
}
