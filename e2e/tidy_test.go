package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
)

// soonTidy has a node look for what is left over far more often than any needs.
const soonTidy = "tidy_period: 1s"

// TestNode_ADO7_OnlyWhatIsOursAndUnwantedGoes leaves things of others and of sandboxes
// that never were beside ours, with the coordinator away and there again, and has 20 new
// sandboxes come meanwhile. One whose record is gone is in
// TestNode_SEC8_RemovedWithADiskAndLetInAgain.
func TestNode_ADO7_OnlyWhatIsOursAndUnwantedGoes(t *testing.T) {
	far, b, _ := joined(t, bed.Options{Node: shortSession, Sandboxes: soonTidy})
	for _, name := range []string{"kept", "doomed"} {
		apply(t, far, sandboxYAML(name, "sleep", ""))
	}
	for _, name := range []string{"kept", "doomed"} {
		awaitPhase(t, far, name, "RUNNING")
	}
	kept, doomed := onHost(t, b, "kept"), onHost(t, b, "doomed")
	was := pids(doomed.GetStatus())
	untouched := plantForeign(t, b)

	// One is deleted while the node is cut off, which cannot know.
	b.Cut()
	bed.Eventually(t, waitLong, "the node knows that it is cut off", func(ctx context.Context) (bool, string) {
		s := link(ctx, b)
		return s == "NOT_SERVING", s
	})
	far.OK("delete", "sandbox", "--no-wait", "doomed")
	for _, process := range []string{"sandbox-agent", "sandboxhost"} {
		b.Kill(process)
		b.WaitComponents()
		samePIDs(t, b, doomed.GetUid(), was)
	}
	plantStray(t, b, strings.ToLower(doomed.GetUid())+"-main-1")
	bed.Eventually(t, time.Minute, "what nobody wishes for is gone, also without the cluster", func(context.Context) (bool, string) {
		samePIDs(t, b, doomed.GetUid(), was) // all the time
		left := findingWords(examine(t, b))
		return len(left) == 0, strings.Join(left, "\n")
	})

	b.Mend()
	var more strings.Builder
	for i := range 20 {
		more.WriteString(sandboxYAML(fmt.Sprintf("fresh-%02d", i), "sleep", ""))
	}
	apply(t, far, more.String())
	bed.Eventually(t, time.Minute, "the deleted one is gone", func(context.Context) (bool, string) {
		s := onHost(t, b, "doomed")
		return s == nil && !bed.Alive(int(was["main"])), fmt.Sprint(s, was)
	})
	for i := range 20 {
		name := fmt.Sprintf("fresh-%02d", i)
		awaitPhase(t, far, name, "RUNNING")
		if s := onHost(t, b, name).GetStatus(); s.GetAttempt() != 1 {
			t.Errorf("%s was touched: %v", name, s)
		}
	}
	samePIDs(t, b, kept.GetUid(), pids(kept.GetStatus()))
	untouched()
	wantFindings(t, "in the end", examine(t, b), "", nil)
}
