package supervise

import (
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"staddle.internal/kit/id"

	"staddle.internal/services/supervisor/internal/machine"
)

// Bounds of what is kept.
const (
	keptTransitions = 1000
	maxCause        = 512 // bytes: a cause may quote what a process says of itself
)

// Transition is one change of the state of one component.
type Transition struct {
	// Seq counts the transitions of one History, from 1.
	Seq uint64
	// At is when it happened.
	At time.Time
	// Component is the name.
	Component string
	// From and To are the states left and entered.
	From, To machine.State
	// Cause says why, in at most 512 bytes. Empty when it became ready.
	Cause string
	// Exit is how its process ended; nil if none ended.
	Exit *machine.Exit
	// Attempt is the number of the start that it is about, 0 before the first.
	Attempt uint32
	// NextDelay is the time until the next start, only when it entered BackingOff.
	NextDelay time.Duration
	// PID of the process afterwards, 0 if there is none.
	PID int
}

// transitions lists what differs between two tables, in the order of the plan;
// while all are stopped in reverse, as the end of one comes before the stop of the
// next. A state that was passed through within one step is not shown.
func transitions(plan machine.Plan, before, after machine.Table, now time.Time) []Transition {
	var out []Transition
	for _, c := range plan.Components {
		old, m := before.Members[c.Name], after.Members[c.Name]
		if old.State == m.State && old.Attempt == m.Attempt {
			continue
		}
		t := Transition{
			At: now, Component: c.Name, From: old.State, To: m.State,
			Cause: bounded(m.Reason), Attempt: m.Attempt, PID: m.PID,
		}
		if old.PID != 0 && m.PID == 0 {
			exit := m.LastExit
			t.Exit = &exit
		}
		if m.State == machine.BackingOff {
			t.NextDelay = m.NextStart.Sub(now)
		}
		out = append(out, t)
	}
	if after.Stopping {
		slices.Reverse(out)
	}
	return out
}

// bounded cuts a text that is too long, never within a character.
func bounded(text string) string {
	if len(text) > maxCause {
		text = text[:maxCause-len("…")]
		text = strings.ToValidUTF8(text, "") + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// History keeps the last transitions of one life of the supervisor. One goroutine
// adds, many read; none waits for another. Safe for concurrent use.
type History struct {
	life string

	mu      sync.Mutex // guards all below
	kept    []Transition
	last    uint64        // Seq of the newest; kept ends with it
	changed chan struct{} // closed and replaced at each addition
}

// NewHistory returns one in which nothing has happened.
func NewHistory() *History {
	return &History{life: id.New(), changed: make(chan struct{})}
}

// Life names this history: the numbers of another mean nothing here.
func (h *History) Life() string { return h.life }

// add gives a transition its number and keeps it.
func (h *History) add(t Transition) Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	t.Seq = h.last
	if len(h.kept) == keptTransitions {
		copy(h.kept, h.kept[1:])
		h.kept = h.kept[:keptTransitions-1]
	}
	h.kept = append(h.kept, t)
	close(h.changed)
	h.changed = make(chan struct{})
	return t
}

// Note keeps what became of the wish for another program of the supervisor itself:
// no transition of a component, and one from ready to ready. attempt is the number of
// the program that it happened to.
func (h *History) Note(component, cause string, attempt uint32) {
	h.add(Transition{
		At: time.Now(), Component: component, From: machine.Ready, To: machine.Ready,
		Cause: bounded(cause), Attempt: attempt, PID: os.Getpid(),
	})
}

// After returns the transitions that are kept and come after number seq, the oldest
// first, how many in between are not kept any more, and a channel that is closed at
// the next addition.
func (h *History) After(seq uint64) (found []Transition, missed uint64, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.last - uint64(len(h.kept)) // the number before the oldest
	seq = min(seq, h.last)
	if seq < first {
		missed = first - seq
		seq = first
	}
	return slices.Clone(h.kept[seq-first:]), missed, h.changed
}

// HistoryRecord is a history as it is handed to the next program in the same
// process, which goes on with its numbers.
type HistoryRecord struct {
	Life string       `json:"life"`
	Last uint64       `json:"last"`
	Kept []Transition `json:"kept"`
}

// Record returns what is kept.
func (h *History) Record() HistoryRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return HistoryRecord{Life: h.life, Last: h.last, Kept: slices.Clone(h.kept)}
}

// ResumeHistory goes on with what another program kept.
func ResumeHistory(r HistoryRecord) *History {
	h := NewHistory()
	h.life, h.last, h.kept = r.Life, r.Last, r.Kept
	return h
}
