// Command hello is the first sandbox: a web server on port 8080 that says who
// and where it is.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetOutput(os.Stdout)
	host, err := os.Hostname()
	if err != nil {
		log.Fatalf("hello: read host name: %v", err)
	}
	started := time.Now()
	go func() {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		log.Printf("hello: stopped by %v", <-stop)
		os.Exit(0)
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello from sandbox %s at %s, up for %s.\n",
			host, r.Context().Value(http.LocalAddrContextKey).(net.Addr), time.Since(started).Round(time.Millisecond))
		log.Printf("hello: %s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Printf("hello: sandbox %s serves on port 8080", host)
	log.Fatal(server.ListenAndServe())
}
