package rpc

import (
	"net"
	"strconv"
	"testing"
)

func TestListensAt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	everywhere, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		l       net.Listener
		address string
		want    bool
	}{
		{l, "127.0.0.1:" + port, true},
		{l, "localhost:" + port, true},
		{l, "127.0.0.1:0", true},
		{l, "127.0.0.1:" + strconv.Itoa(number-1), false},
		{l, "127.0.0.2:" + port, false},
		{l, "0.0.0.0:" + port, false},
		{l, "no address", false},
		{everywhere, "0.0.0.0:0", true},
		{everywhere, "[::]:0", true},
		{everywhere, "127.0.0.1:0", false},
	}
	for _, tt := range tests {
		if got := ListensAt(tt.l, tt.address); got != tt.want {
			t.Errorf("%s at %s: got %t, want %t", tt.l.Addr(), tt.address, got, tt.want)
		}
	}
}
