package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// bareServer is the argument with which the program is the floor of calls.
const bareServer = "bare-server"

// bare answers with nothing around it.
type bare struct {
	processv1.UnimplementedProcessServiceServer
}

// GetStatus answers what a process of ours would.
func (bare) GetStatus(context.Context, *processv1.GetStatusRequest) (*processv1.GetStatusResponse, error) {
	return &processv1.GetStatusResponse{Process: "bare", State: processv1.ProcessState_PROCESS_STATE_READY, Pid: int32(os.Getpid())}, nil
}

func serveBare(socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := grpc.NewServer()
	processv1.RegisterProcessServiceServer(s, bare{})
	fmt.Fprintln(os.Stderr, s.Serve(l))
}

// startBare starts the floor in a process of its own.
func startBare(t *harness) (processv1.ProcessServiceClient, func()) {
	dir, err := os.MkdirTemp("", "bare-")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.Command("/proc/self/exe", bareServer, socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	return processv1.NewProcessServiceClient(conn), func() {
		_ = conn.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}
