// Package probe owns the two questions that are asked of every process: is it
// live, and is it ready?
//
// Live means that any answer to a health check comes in time. Ready means that
// health says SERVING; when it does not, the process's own GetStatus says why, and
// whether the cause lies outside this machine. A first SERVING is believed only
// after a second question: a process that answers once and dies has not been
// ready.
//
// It must never act on an answer: it turns answers into events of the machine,
// and the machine decides. In the trail it stands between a running child and the
// loop.
package probe

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/supervisor/internal/machine"
)

// Config is how and how often questions are asked.
type Config struct {
	// Interval between two checks of a process that is ready, and Hurry of one
	// that is not.
	Interval, Hurry time.Duration
	// Timeout of one question.
	Timeout time.Duration
	// Misses in a row, after a first answer, that make a process hung.
	Misses int
	// Settle is the time between the first SERVING and the question whether it
	// still holds.
	Settle time.Duration
}

// Default are the values of the product. A process that hangs is found after the
// interval and three time-outs: eleven seconds at most. With a shorter interval the
// supervisor alone would use more than a thousandth of a core at rest, most of it
// for waking up.
func Default() Config {
	return Config{
		Interval: 8 * time.Second, Hurry: 500 * time.Millisecond,
		Timeout: time.Second, Misses: 3, Settle: 20 * time.Millisecond,
	}
}

// redial is the wait before a broken stream is opened again.
const redial = 50 * time.Millisecond

// grief is how long a broken stream is not spoken of: a process that has just
// died is told by its exit, not by its silence.
const grief = 300 * time.Millisecond

// Target is one process.
type Target struct {
	Name   string
	PID    int
	Socket string
	// Plain is a process of somebody else: it has no GetStatus, and does not mend
	// its socket when the path is lost.
	Plain bool
	// Answered says that it gave an answer before this watch began.
	Answered bool
}

// Watch asks one process until ctx ends, which is when the process has. emit gets
// events without a time. It never fails because of the process.
func Watch(ctx context.Context, cfg Config, t Target, emit func(machine.Event)) error {
	conn, err := rpc.Dial(t.Socket, rpc.DialConfig{Process: "supervisor", Foreign: t.Plain})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watcher{
		cfg: cfg, target: t, emit: emit, answered: t.Answered,
		health:  healthv1.NewHealthClient(conn),
		process: processv1.NewProcessServiceClient(conn),
		said:    make(chan word),
	}
	done := make(chan struct{})
	go func() { // owned by Watch: ends with ctx, waited for below
		defer close(done)
		w.listen(ctx)
	}()
	w.loop(ctx)
	cancel()
	<-done
	return nil
}

// word is one message of the health stream, or its end.
type word struct {
	serving bool
	err     error
}

type watcher struct {
	cfg     Config
	target  Target
	emit    func(machine.Event)
	health  healthv1.HealthClient
	process processv1.ProcessServiceClient
	said    chan word

	answered bool // at least once
	serving  bool // and that was told
	misses   int
}

// listen follows the health stream and opens it again for ever.
func (w *watcher) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.follow(ctx)
		w.say(ctx, word{err: err})
		if backoff.Wait(ctx, redial) != nil {
			return
		}
	}
}

func (w *watcher) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.health.Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		w.say(ctx, word{serving: answer.GetStatus() == healthv1.HealthCheckResponse_SERVING})
	}
}

func (w *watcher) say(ctx context.Context, said word) {
	select {
	case w.said <- said:
	case <-ctx.Done():
	}
}

// loop is the only one that emits.
func (w *watcher) loop(ctx context.Context) {
	timer := time.NewTimer(w.cfg.Hurry)
	defer timer.Stop()
	for {
		select {
		case said := <-w.said:
			w.hear(ctx, said)
		case <-timer.C:
			w.check(ctx)
			timer.Reset(w.pause())
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) pause() time.Duration {
	switch {
	case w.misses > 0:
		return 0
	case w.serving:
		return untilBeat(time.Now(), w.cfg.Interval)
	}
	return w.cfg.Hurry
}

// untilBeat is the time to the next beat that all probes have in common: one
// wake-up of this process for all of them costs a fraction of one for each.
func untilBeat(now time.Time, interval time.Duration) time.Duration {
	return now.Truncate(interval).Add(interval).Sub(now)
}

// hear judges a word of the stream.
func (w *watcher) hear(ctx context.Context, said word) {
	switch {
	case said.err != nil:
		if !w.serving || backoff.Wait(ctx, grief) != nil {
			return
		}
		if serving, ok := w.ask(ctx); ok && serving {
			return // the stream broke, the process did not
		}
		w.notServing(ctx)
	case said.serving:
		w.confirm(ctx)
	default:
		w.answered = true
		w.notServing(ctx)
	}
}

// confirm asks again before a process is called ready.
func (w *watcher) confirm(ctx context.Context) {
	w.answered = true
	if w.serving || backoff.Wait(ctx, w.cfg.Settle) != nil {
		return
	}
	if serving, ok := w.ask(ctx); !ok || !serving {
		return // a later word or check tells
	}
	w.serving = true
	w.tell(machine.Event{Kind: machine.Serving})
}

// check is the question whether it is live; its answer also mends what the stream
// has missed.
func (w *watcher) check(ctx context.Context) {
	serving, ok := w.ask(ctx)
	switch {
	case ctx.Err() != nil:
	case !ok:
		w.missed()
	case !serving:
		w.present()
		w.notServing(ctx)
	default:
		w.present()
		w.confirm(ctx)
	}
}

// missed counts only what follows a first answer: before it, the start time-out
// does.
func (w *watcher) missed() {
	if !w.answered {
		return
	}
	w.misses++
	if w.misses < w.cfg.Misses {
		w.tell(machine.Event{Kind: machine.Silent})
		return
	}
	reason := "gave no answer to health, several times in a row"
	if w.unreachable() {
		reason = "its socket " + w.target.Socket + " was removed"
	}
	w.tell(machine.Event{Kind: machine.Hung, Reason: reason})
}

func (w *watcher) present() {
	w.answered = true
	if w.misses > 0 {
		w.misses = 0
		w.tell(machine.Event{Kind: machine.Answering})
	}
}

// ask returns what health says, and whether it says anything in time. An error
// that is an answer means not serving.
func (w *watcher) ask(ctx context.Context) (serving, ok bool) {
	if w.unreachable() { // for as long as a question to who is silent
		_ = backoff.Wait(ctx, w.cfg.Timeout) // cut short when the process has ended, which is an answer as well
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	answer, err := w.health.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false, fault.KindOf(err) != fault.Unavailable
	}
	return answer.GetStatus() == healthv1.HealthCheckResponse_SERVING, true
}

// unreachable says that nobody who comes now reaches a process that does not mend
// its socket. The connection of this watcher would go on and never notice.
func (w *watcher) unreachable() bool {
	if !w.target.Plain {
		return false
	}
	info, err := os.Stat(w.target.Socket)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != fs.ModeSocket
}

// notServing tells the process's own reason.
func (w *watcher) notServing(ctx context.Context) {
	w.serving = false
	e := machine.Event{Kind: machine.NotServing, Reason: "health says that it does not serve"}
	if !w.target.Plain {
		ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
		defer cancel()
		st, err := w.process.GetStatus(ctx, &processv1.GetStatusRequest{})
		switch {
		case err != nil:
			e.Reason = "does not say why it is not ready: " + err.Error()
		case st.GetReason() != "":
			e.Reason, e.External, e.WaitingFor = st.GetReason(), st.GetExternal(), st.GetWaitingFor()
		}
	}
	if ctx.Err() == nil {
		w.tell(e)
	}
}

func (w *watcher) tell(e machine.Event) {
	e.Name, e.PID = w.target.Name, w.target.PID
	w.emit(e)
}
