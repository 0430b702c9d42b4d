package machine

import "time"

// Record is a table in a form that can be written down: every point in time is an
// age, so that it can be read against the clock of another program. It is whole: a
// table that was recorded and resumed behaves as if nothing had happened.
type Record struct {
	Members  map[string]MemberRecord `json:"members"`
	Stopping bool                    `json:"stopping"`
	Booted   bool                    `json:"booted"`
	Over     bool                    `json:"over"`
	Failure  string                  `json:"failure"`
}

// MemberRecord is one member of it. Each field is that of Member.
type MemberRecord struct {
	State      State         `json:"state"`
	Since      age           `json:"since"`
	Reason     string        `json:"reason"`
	PID        int           `json:"pid"`
	Starts     uint32        `json:"starts"`
	NextStart  age           `json:"next_start"`
	Attempt    uint32        `json:"attempt"`
	LastExit   Exit          `json:"last_exit"`
	Spawning   bool          `json:"spawning"`
	StartedAt  age           `json:"started_at"`
	Failures   int           `json:"failures"`
	Left       time.Duration `json:"left"`
	Clock      age           `json:"clock"`
	External   bool          `json:"external"`
	WaitingFor []string      `json:"waiting_for"`
	Silent     bool          `json:"silent"`
	WasReady   bool          `json:"was_ready"`
	Again      bool          `json:"again"`
	Held       bool          `json:"held"`
	Why        string        `json:"why"`
	Cause      string        `json:"cause"`
	Deadline   age           `json:"deadline"`
	Killed     bool          `json:"killed"`
}

// age is how long ago something is, below zero for what is still to come; nil for
// never.
type age *time.Duration

func ageOf(t, now time.Time) age {
	if t.IsZero() {
		return nil
	}
	d := now.Sub(t)
	return &d
}

func at(a age, now time.Time) time.Time {
	if a == nil {
		return time.Time{}
	}
	return now.Add(-*a)
}

// Record writes the table down as of now.
func (t Table) Record(now time.Time) Record {
	r := Record{
		Members:  make(map[string]MemberRecord, len(t.Members)),
		Stopping: t.Stopping, Booted: t.Booted, Over: t.Over, Failure: t.Failure,
	}
	for name, m := range t.Members {
		r.Members[name] = m.record(now)
	}
	return r
}

func (m *Member) record(now time.Time) MemberRecord {
	return MemberRecord{
		State: m.State, Since: ageOf(m.Since, now), Reason: m.Reason, PID: m.PID, Starts: m.Starts,
		NextStart: ageOf(m.NextStart, now), LastExit: m.LastExit, Attempt: m.Attempt,
		Spawning: m.spawning, StartedAt: ageOf(m.startedAt, now), Failures: m.failures, Left: m.left,
		Clock: ageOf(m.clock, now), External: m.external, WaitingFor: m.waitingFor, Silent: m.silent,
		WasReady: m.wasReady, Again: m.again, Held: m.held, Why: m.why, Cause: m.cause, Deadline: ageOf(m.deadline, now), Killed: m.killed,
	}
}

// Resume returns the table that was recorded, as of now. A component that the
// plan has no more is left out, and a new one waits to be started.
func (p Plan) Resume(r Record, now time.Time) Table {
	t := p.Start(now)
	t.Stopping, t.Booted, t.Over, t.Failure = r.Stopping, r.Booted, r.Over, r.Failure
	for name := range t.Members {
		if old, ok := r.Members[name]; ok {
			t.Members[name] = old.resume(now)
		} else {
			t.Booted = false
		}
	}
	return t
}

func (r MemberRecord) resume(now time.Time) *Member {
	return &Member{
		State: r.State, Since: at(r.Since, now), Reason: r.Reason, PID: r.PID, Starts: r.Starts,
		NextStart: at(r.NextStart, now), LastExit: r.LastExit, Attempt: r.Attempt,
		spawning: r.Spawning, startedAt: at(r.StartedAt, now), failures: r.Failures, left: r.Left,
		clock: at(r.Clock, now), external: r.External, waitingFor: r.WaitingFor, silent: r.Silent,
		wasReady: r.WasReady, again: r.Again, held: r.Held, why: r.Why, cause: r.Cause, deadline: at(r.Deadline, now), killed: r.Killed,
	}
}
