package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// failureShown is what the supervisor may take, over the start time-out, to show a
// start that cannot succeed, or to end with it.
const failureShown = 5 * time.Second

const notReady = supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY

// SUP-3: what waits for a component that cannot start is told why, within the start
// time-out and a little, while it is tried again; and with --fail-fast the supervisor
// ends within the same time with the component and the reason.
func TestSupervisor_SUP3_AStartThatCannotSucceedIsNamedInTime(t *testing.T) {
	const settings, limit = "  start_timeout: 1s\n  stop_timeout: 1s\n", time.Second + time.Second + failureShown
	for mode, reason := range map[string]string{
		"fail": "exit code 1", "never ready": "not ready within 1s: recovering 3 volumes", "deaf to all": "not ready within 1s",
	} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, settings, chain(mode)...)
			begin := time.Now()
			n.start()
			c := n.until("b", "told why", func(c *supervisorv1.Component) bool { return strings.Contains(c.GetReason(), reason) })
			if took := time.Since(begin); took > limit || c.GetState() != waiting || c.GetStarts() != 0 {
				t.Errorf("got %v after %s, want it waiting and never started, within %s", c, took, limit)
			}
			if st := n.status(); st.GetState() != processv1.ProcessState_PROCESS_STATE_STARTING || !strings.Contains(st.GetReason(), "a is") {
				t.Errorf("got status %v, want it to name a", st)
			}
			n.until("a", "tried again", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 2 })
			begin = time.Now()
			if code := n.stop(); code != 0 || time.Since(begin) > 10*time.Second {
				t.Errorf("got exit code %d after %s, want 0 within 10s", code, time.Since(begin))
			}
		})
		t.Run(mode+", fail fast", func(t *testing.T) {
			n := newNode(t, settings, chain(mode)...)
			begin := time.Now()
			n.start("--fail-fast")
			if code := n.wait(); code != 1 || time.Since(begin) > limit {
				t.Errorf("got exit code %d after %s, want 1 within %s", code, time.Since(begin), limit)
			}
			if text := n.out.String(); !strings.Contains(text, "start of the node failed: component a: "+reason) {
				t.Error("got no line with the component and the reason")
			}
			if got := n.order("to", "starting"); slices.Contains(got, "b") {
				t.Errorf("got starts of %v, want none of b", got)
			}
		})
	}
}

// SUP-5: each is asked to end when all that come after it are gone, also when one of
// them takes its time.
func TestSupervisor_SUP5_TheEndOfOneComesBeforeTheStopOfTheNext(t *testing.T) {
	n := newNode(t, "  stop_timeout: 1s\n", part{name: "a", mode: "serve"},
		part{name: "b", mode: "deaf", more: "needs: [a]"}, part{name: "c", mode: "serve", more: "order_only: [b]"})
	n.start()
	n.untilState("c", ready)
	before := len(n.changes())
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	want := []string{"c stopping", "c stopped", "b stopping", "b stopped", "a stopping", "a stopped"}
	if got := n.changes()[before:]; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// changes reads from the supervisor's own lines what each component became.
func (n *node) changes() []string {
	var out []string
	for line := range strings.Lines(n.out.String()) {
		if !strings.Contains(line, `"msg":"component changed"`) && !strings.Contains(line, `"msg":"component failed"`) {
			continue
		}
		out = append(out, field(line, "component")+" "+field(line, "to"))
	}
	return out
}

func field(line, key string) string {
	_, rest, _ := strings.Cut(line, `"`+key+`":"`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// SUP-9: one that ends again and again is tried with growing gaps up to the cap, a
// restart by hand does not make them short again, nobody else notices, and once it
// is mended it comes up by itself.
func TestSupervisor_SUP9_ACrashLoopIsSpacedAndNeverGivenUp(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"}, part{name: "b", mode: "fail until mended", more: "needs: [a]"})
	n.start()
	n.until("b", "tried eight times", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 8 })
	if _, err := n.api.RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	n.until("b", "tried ten times", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 10 })
	list, err := n.api.ListEvents(t.Context(), &supervisorv1.ListEventsRequest{Component: "b"})
	if err != nil {
		t.Fatal(err)
	}
	step, failures := 50*time.Millisecond, 0
	for _, e := range list.GetEvents() {
		if e.GetNextDelay() == nil {
			continue
		}
		failures++
		if got := e.GetNextDelay().AsDuration(); got > step || got < step*3/4-time.Millisecond {
			t.Errorf("got a gap of %s after failure %d, want three quarters of %s to all of it", got, failures, step)
		}
		step = min(2*step, time.Second)
	}
	if failures < 8 { // the restart may have ended a start before it failed
		t.Errorf("got %d failures told of, want at least 8", failures)
	}
	if a := n.graph()["a"]; a.GetState() != ready || a.GetStarts() != 1 {
		t.Errorf("got %v, want it untouched", a)
	}
	if st := n.status(); !strings.Contains(st.GetReason(), "b is") {
		t.Errorf("got status %v, want it to name b", st)
	}
	if err := os.WriteFile(filepath.Join(n.root, "mended"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.untilState("b", ready)
}

// SUP-10: that a need was not ready for a while holds up nobody afterwards, and its
// dip is one event each way.
func TestSupervisor_SUP10_ADipIsNotForEver(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "orders"}, part{name: "b", mode: "serve", more: "needs: [a]"})
	n.start()
	n.untilState("b", ready)
	order := func(text string) {
		if err := os.WriteFile(filepath.Join(n.root, "order.new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(n.root, "order.new"), filepath.Join(n.root, "order-a")); err != nil {
			t.Fatal(err)
		}
	}
	order("block disk full")
	n.until("a", "not ready with its reason", func(c *supervisorv1.Component) bool {
		return c.GetState() == notReady && strings.Contains(c.GetReason(), "disk full")
	})
	pid := n.graph()["b"].GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.untilAgain("b", pid) // it does not wait any more for what it has seen ready
	order("unblock")
	n.untilState("a", ready)
	n.eventually(func() bool { return n.status().GetState() == processv1.ProcessState_PROCESS_STATE_READY },
		func() string { return fmt.Sprintf("the node to be ready, last seen %v", n.status()) })
	list, err := n.api.ListEvents(t.Context(), &supervisorv1.ListEventsRequest{Component: "a"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list.GetEvents() {
		got = append(got, e.GetTo().String())
	}
	if want := []string{starting.String(), ready.String(), notReady.String(), ready.String()}; !slices.Equal(got, want) {
		t.Errorf("got %v, want the dip as one event each way", got)
	}
}
