package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
)

// fixed is a graph that does not change.
type fixed struct {
	table     machine.Table
	restarted string
}

func (f *fixed) Table() machine.Table     { return f.table }
func (f *fixed) Changed() <-chan struct{} { return nil }
func (f *fixed) Restart(_ context.Context, name string) error {
	f.restarted = name
	return nil
}

func TestGetGraph_ShowsEveryState(t *testing.T) {
	now := time.Now()
	seen := map[supervisorv1.ComponentState]bool{}
	for s := machine.Waiting; s <= machine.BackingOff; s++ {
		plan := machine.Plan{Components: []machine.Component{{Name: "a", Needs: []string{"b"}}}}
		f := &fixed{table: machine.Table{Members: map[string]*machine.Member{"a": {State: s, Since: now, NextStart: now, PID: 7, Starts: 2}}}}
		answer, err := New(plan, f, func() {}, nil).GetGraph(t.Context(), &supervisorv1.GetGraphRequest{})
		if err != nil {
			t.Fatal(err)
		}
		c := answer.GetComponents()[0]
		if c.GetState() == 0 || seen[c.GetState()] || c.GetPid() != 7 || c.GetStarts() != 2 || c.GetNeeds()[0] != "b" {
			t.Errorf("got %v for %s, want its own state and all fields", c, s)
		}
		if got := c.GetNextStartAt() != nil; got != (s == machine.BackingOff) {
			t.Errorf("got next start set %v in %s, want it only while backing off", got, s)
		}
		seen[c.GetState()] = true
	}
}

func TestRestartComponent_BoundsTheName(t *testing.T) {
	f := &fixed{}
	s := New(machine.Plan{}, f, func() {}, nil)
	for _, name := range []string{"", strings.Repeat("x", 64)} {
		if _, err := s.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: name}); !errors.Is(err, fault.Invalid) {
			t.Errorf("got %v for a name of %d characters, want Invalid", err, len(name))
		}
	}
	if f.restarted != "" {
		t.Errorf("got a restart of %q, want none", f.restarted)
	}
}
