package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"
)

// Program is one of the programs that the supervisor's process has run.
type Program struct {
	// Life of the process.
	Life string
	// Number counts the programs of that life, from 1.
	Number uint32
	// Version of it.
	Version string
	// Since is when it was started or took over.
	Since time.Time
}

// own is the program of the supervisor itself.
type own interface {
	Program() Program
	// Restart replaces the program, and then does not return, or returns when a
	// later one than that number of that life has taken over.
	Restart(ctx context.Context, life string, number uint32) error
}

// GetSupervisor answers from memory.
func (s *Server) GetSupervisor(context.Context, *supervisorv1.GetSupervisorRequest) (*supervisorv1.GetSupervisorResponse, error) {
	return &supervisorv1.GetSupervisorResponse{Program: s.program()}, nil
}

// RestartSupervisor is answered by the program that is there then.
func (s *Server) RestartSupervisor(ctx context.Context, req *supervisorv1.RestartSupervisorRequest) (*supervisorv1.RestartSupervisorResponse, error) {
	if n := len(req.GetLife()); n == 0 || n > maxLife {
		return nil, fault.New(fault.Invalid, "restart supervisor: life has %d characters, write 1 to %d", n, maxLife)
	}
	if req.GetNumber() == 0 {
		return nil, fault.New(fault.Invalid, "restart supervisor: number is 0, write at least 1")
	}
	if err := s.deps.Own.Restart(ctx, req.GetLife(), req.GetNumber()); err != nil {
		return nil, err
	}
	return &supervisorv1.RestartSupervisorResponse{Program: s.program()}, nil
}

func (s *Server) program() *supervisorv1.SupervisorProgram {
	p := s.deps.Own.Program()
	return &supervisorv1.SupervisorProgram{Life: p.Life, Number: p.Number, Version: p.Version, Since: timestamppb.New(p.Since)}
}
