package host_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestHost_Reboot(t *testing.T) {
	stopAfter := &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(time.Minute)}
	tests := []struct {
		name       string
		manager    string
		disconnect *resourcev1.DisconnectPolicy
		named      bool
		lost       bool          // the journal too
		within     time.Duration // runs again; 0 means held
		notBefore  time.Duration
	}{
		{"local starts at once", host.ManagerLocal, nil, false, false, 100 * time.Millisecond, 0},
		{"named by the cluster", host.ManagerCluster, stopAfter, true, false, 100 * time.Millisecond, 0},
		{"kept without contact", host.ManagerCluster, nil, false, false, 16 * time.Second, 15 * time.Second},
		{"held without contact", host.ManagerCluster, stopAfter, false, false, 0, 0},
		{"kept without contact and notes", host.ManagerCluster, nil, false, true, 16 * time.Second, 15 * time.Second},
		{"held without contact and notes", host.ManagerCluster, stopAfter, false, true, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(tt.manager, "sleep")
				w.Spec.Disconnect = tt.disconnect
				n.ensure(w)
				n.awaitPhase(w.GetUid(), running, 1)
				n.reboot()
				if tt.lost {
					if err := os.Remove(n.path); err != nil {
						n.t.Fatal(err)
					}
				}
				n.start()
				began := time.Now()
				if tt.named {
					n.ensure(w)
				}
				if tt.within == 0 {
					time.Sleep(50 * time.Second)
					n.await(w.GetUid(), "held", func(s state) bool {
						return s.GetStatus().GetReason() == host.ReasonWaitingForCluster && s.GetStatus().GetPhase() == pending
					})
					return
				}
				s := n.awaitPhase(w.GetUid(), running, 2)
				if took := time.Since(began); took > tt.within || took < tt.notBefore {
					n.t.Errorf("runs again after %v, want %v to %v", took, tt.notBefore, tt.within)
				}
				if exits := s.GetStatus().GetExits(); len(exits) != 1 || !exits[0].GetUnknown() {
					n.t.Errorf("got exits %v, want one that is unknown", exits)
				}
			})
		})
	}
}

// Work that must not run twice runs after a reboot only if it had not begun.
func TestHost_RebootNever(t *testing.T) {
	for _, begun := range []bool{true, false} {
		t.Run(fmt.Sprintf("begun %v", begun), func(t *testing.T) {
			inBubble(t, func(n *node) {
				w := wishFor(host.ManagerLocal, "sleep")
				w.Spec.RestartPolicy = resourcev1.RestartPolicy_RESTART_POLICY_NEVER
				reached := make(chan struct{})
				n.engine.Before = func(ctx context.Context, _ id.Sandbox, a engine.Action) error {
					if begun || a.Step != engine.StepStart {
						return nil
					}
					close(reached)
					<-ctx.Done()
					return ctx.Err()
				}
				n.ensure(w)
				if begun {
					n.awaitPhase(w.GetUid(), running, 1)
				} else {
					<-reached
				}
				n.reboot()
				n.engine.Before = nil
				n.start()
				if begun {
					n.awaitPhase(w.GetUid(), failed, 1)
				} else {
					n.awaitPhase(w.GetUid(), running, 2)
				}
				n.startedOnce()
			})
		})
	}
}

func TestHost_Disconnect(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec.Disconnect = &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(30 * time.Second)}
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		for range 10 {
			time.Sleep(10 * time.Second)
			n.host.SetAuthority(time.Since(n.booted))
		}
		last := time.Now()
		n.awaitPhase(w.GetUid(), running, 1)
		n.awaitPhase(w.GetUid(), stopped, 1)
		if after := time.Since(last); after < 30*time.Second || after > 31*time.Second {
			n.t.Errorf("stopped %v after the last renewal, want 30 s", after)
		}
		n.host.SetAuthority(time.Since(n.booted))
		n.awaitPhase(w.GetUid(), running, 2)
	})
}

// A restart of the host gives a sandbox that is cut off no more time.
func TestHost_DisconnectSurvivesRestart(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec.Disconnect = &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(30 * time.Second)}
		n.ensure(w)
		renewed := time.Now()
		n.host.SetAuthority(renewed.Sub(n.booted))
		n.awaitPhase(w.GetUid(), running, 1)
		time.Sleep(20 * time.Second)
		n.kill()
		n.start()
		n.host.SetAuthority(renewed.Sub(n.booted))
		n.awaitPhase(w.GetUid(), stopped, 1)
		if after := time.Since(renewed); after < 30*time.Second || after > 31*time.Second {
			n.t.Errorf("stopped %v after the last renewal, want 30 s", after)
		}
	})
}

// What the policy stopped stays so over a restart of the host, until it is known
// when the session was renewed last.
func TestHost_DisconnectedStaysStoppedAfterRestart(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec.Disconnect = &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(30 * time.Second)}
		n.ensure(w)
		renewed := time.Now()
		n.host.SetAuthority(renewed.Sub(n.booted))
		n.awaitPhase(w.GetUid(), stopped, 1)
		n.kill()
		n.start()
		time.Sleep(time.Minute) // clusteraccess is away
		n.awaitPhase(w.GetUid(), stopped, 1)
		n.host.SetAuthority(renewed.Sub(n.booted)) // it comes back, still without the cluster
		time.Sleep(time.Minute)
		n.awaitPhase(w.GetUid(), stopped, 1)
		n.host.SetAuthority(time.Since(n.booted))
		n.awaitPhase(w.GetUid(), running, 2)
	})
}
