// Command service is a workload of the end-to-end tests that is watched: it opens a port
// when it likes, and says of itself that it is well, or not, by http or gRPC.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const usage = `service VERB [ARG...]
  http ADDRESS [AFTER]   after a while listen, and answer GET /healthy with 200, or 503
  grpc ADDRESS [AFTER]   the same by grpc.health.v1.Health, for "" and "shop.Rates"
  tcp ADDRESS [AFTER]    the same, but only take connections
                         it is not well from SIGUSR1 to SIGUSR2; it ends by SIGTERM with 0
  tell FILE WORD         write a word at the end of FILE
  has FILE               exit with 0 if FILE is there, else with 1`

func main() {
	args := append(os.Args, "", "", "")
	switch verb := args[1]; verb {
	case "http", "grpc", "tcp":
		serve(verb, args[2], args[3])
	case "tell":
		f, err := os.OpenFile(args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		must(err)
		_, err = fmt.Fprintln(f, args[3])
		must(err)
		must(f.Close())
	case "has":
		if _, err := os.Stat(args[2]); err != nil {
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(64)
	}
}

func serve(kind, address, after string) {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if after != "" {
		d, err := time.ParseDuration(after)
		must(err)
		select {
		case <-stop.Done():
			os.Exit(0)
		case <-time.After(d):
		}
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGUSR1, syscall.SIGUSR2)
	l, err := net.Listen("tcp", address)
	must(err)
	set := map[string]func(net.Listener) func(well bool){"http": web, "grpc": rpc, "tcp": bare}[kind](l)
	fmt.Println("open")
	for {
		select {
		case <-stop.Done():
			os.Exit(0)
		case s := <-changed:
			set(s == syscall.SIGUSR2)
			fmt.Println("well:", s == syscall.SIGUSR2)
		}
	}
}

func web(l net.Listener) func(bool) {
	var ill atomic.Bool
	handler := http.NewServeMux()
	handler.HandleFunc("GET /healthy", func(w http.ResponseWriter, _ *http.Request) {
		if ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { must(s.Serve(l)) }() // ends with the program
	return func(well bool) { ill.Store(!well) }
}

func rpc(l net.Listener) func(bool) {
	s, h := grpc.NewServer(), health.NewServer()
	set := func(well bool) {
		status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
		if well {
			status = grpc_health_v1.HealthCheckResponse_SERVING
		}
		h.SetServingStatus("", status)
		h.SetServingStatus("shop.Rates", status)
	}
	set(true)
	grpc_health_v1.RegisterHealthServer(s, h)
	go func() { must(s.Serve(l)) }() // ends with the program
	return set
}

func bare(l net.Listener) func(bool) {
	go func() { // ends with the program
		for {
			c, err := l.Accept()
			must(err)
			must(c.Close())
		}
	}()
	return func(bool) {}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
}
