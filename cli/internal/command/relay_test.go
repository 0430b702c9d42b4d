package command

import (
	"os"
	"sync"
	"syscall"
	"testing"
)

// relaying runs relay, and returns where signals come in, where they go, and whether it
// gave up, once it has ended.
func relaying(t *testing.T) (in chan<- os.Signal, onward <-chan os.Signal, gaveUp func() bool) {
	t.Helper()
	from, to, gave := make(chan os.Signal), make(chan os.Signal), false
	var done sync.WaitGroup
	done.Go(func() { relay(t.Context(), from, to, func() { gave = true }) })
	return from, to, func() bool {
		done.Wait()
		return gave
	}
}

// A process that never begins takes no signals: the person who asks for the end often
// enough gets it all the same.
func TestRelay_GivesUpWithoutSomebodyToTakeSignals(t *testing.T) {
	in, _, gaveUp := relaying(t)
	for range tolerated + 1 {
		in <- syscall.SIGINT
	}
	if !gaveUp() {
		t.Error("it ended, and did not give up")
	}
}

// What was asked for before the process began reaches it in its order.
func TestRelay_KeepsSignalsUntilSomebodyTakesThem(t *testing.T) {
	in, onward, gaveUp := relaying(t)
	want := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	for _, s := range want {
		in <- s
	}
	for i, s := range want {
		if got := <-onward; got != s {
			t.Errorf("signal %d: got %v, want %v", i, got, s)
		}
	}
	in <- syscall.SIGQUIT
	if !gaveUp() {
		t.Error("it ended, and did not give up")
	}
}
