package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/inventory"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Bounds of an answer.
const (
	maxDifferences = 1000
	maxUncompared  = 500
)

// checker compares the host with the notes; a *host.Host.
type checker interface {
	Check(ctx context.Context, fix bool) (host.Report, error)
}

// checkServer implements CheckService.
type checkServer struct {
	sandboxhostv1.UnimplementedCheckServiceServer
	host checker
}

// RegisterCheck serves the comparison that c makes on a server.
func RegisterCheck(on grpc.ServiceRegistrar, c checker) {
	sandboxhostv1.RegisterCheckServiceServer(on, &checkServer{host: c})
}

// CheckHost compares, and mends if it is asked to.
func (s *checkServer) CheckHost(ctx context.Context, req *sandboxhostv1.CheckHostRequest) (*sandboxhostv1.CheckHostResponse, error) {
	report, err := s.host.Check(ctx, req.GetFix())
	if err != nil {
		return nil, err
	}
	resp := &sandboxhostv1.CheckHostResponse{
		Sandboxes: uint32(report.Sandboxes), Objects: uint32(report.Objects), ContainerdVersion: report.Version,
		MoreDifferences: uint32(max(0, len(report.Findings)-maxDifferences)),
	}
	for _, f := range report.Findings[:min(len(report.Findings), maxDifferences)] {
		resp.Differences = append(resp.Differences, difference(f))
	}
	for _, u := range report.Uncompared[:min(len(report.Uncompared), maxUncompared)] {
		resp.Uncompared = append(resp.Uncompared, uncompared(u))
	}
	return resp, nil
}

func difference(f host.Finding) *sandboxhostv1.Difference {
	d := &sandboxhostv1.Difference{
		Kind: f.Kind, Name: f.Name, SandboxUid: string(f.UID), SandboxName: f.SandboxName, Fixed: f.Fixed,
		Deviation: sandboxhostv1.Deviation_DEVIATION_LEFT_OVER, Remedy: sandboxhostv1.Remedy_REMEDY_FIX,
	}
	if f.Missing {
		d.Deviation = sandboxhostv1.Deviation_DEVIATION_MISSING
	}
	if !f.Mendable() {
		d.Remedy = sandboxhostv1.Remedy_REMEDY_RESTART_SANDBOX
	}
	if !f.Since.IsZero() {
		d.Since = timestamppb.New(f.Since)
	}
	if f.Err != nil {
		d.Error = f.Err.Error()
	}
	return d
}

func uncompared(s inventory.Stock) *sandboxhostv1.UncomparedSandbox {
	return &sandboxhostv1.UncomparedSandbox{Uid: string(s.UID), Name: s.Name, Reason: s.Activity}
}
