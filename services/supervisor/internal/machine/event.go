package machine

import "time"

// EventKind says what happened.
type EventKind int

// The kinds of events. Those about a process carry its PID; one about a process
// that is not the component's present one is ignored.
const (
	// Tick: time has passed.
	Tick EventKind = iota + 1
	// Spawned: the process that Start asked for lives.
	Spawned
	// SpawnFailed: it could not be made.
	SpawnFailed
	// Exited: the process and everything it left in its cgroup is gone.
	Exited
	// Serving: health says SERVING.
	Serving
	// NotServing: health says something else, with the process's own reason.
	NotServing
	// Silent: one question to health was not answered in time.
	Silent
	// Answering: a question to health was answered, whatever the answer.
	Answering
	// Hung: too many questions in a row were not answered.
	Hung
	// RestartAsked: an operator wants a fresh process; or, with a PID and a reason,
	// that process must go because it cannot be reached any more.
	RestartAsked
	// StopOneAsked: an operator wants one component stopped until further notice.
	StopOneAsked
	// StartOneAsked: an operator wants it to run again.
	StartOneAsked
	// StopAsked: everything is to stop.
	StopAsked
)

// Event is one thing that happened.
type Event struct {
	Kind EventKind
	At   time.Time
	// Name of the component. Empty for Tick and StopAsked.
	Name string
	PID  int
	// Reason in words: why it could not be made, or does not serve.
	Reason string
	// Exit is how it ended, with Exited.
	Exit Exit
	// External and WaitingFor are what a process says with NotServing.
	External   bool
	WaitingFor []string
	// Jitter in [0, 1) spreads the back-off.
	Jitter float64
}

// ActionKind says what to do.
type ActionKind int

// The kinds of actions.
const (
	// Start a process of the component; Spawned or SpawnFailed answers.
	Start ActionKind = iota + 1
	// Terminate asks the process to end.
	Terminate
	// Kill ends it, with all that it started.
	Kill
)

// Action is one thing to do.
type Action struct {
	Kind ActionKind
	Name string
	// PID is the process to end, 0 for Start.
	PID int
}
