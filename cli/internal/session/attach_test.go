package session_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/session"
)

const inputID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func begun(taken uint64) *sandboxhostv1.AttachResponse {
	return &sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Started{
		Started: &sandboxhostv1.AttachStarted{Attempt: 4, StdinTaken: taken},
	}}
}

func wrote(offset int64, data string) *sandboxhostv1.AttachResponse {
	return &sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Stdout{
		Stdout: &sandboxhostv1.AttachOutput{Offset: offset, Data: []byte(data)},
	}}
}

func over(code uint32) *sandboxhostv1.AttachResponse {
	return &sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Exit{Exit: &sandboxhostv1.ExecExit{Code: code}}}
}

// A session over several connections shows every byte once, and sends again only what was not taken. (EXE-4)
func TestAttach_EXE4_GoesOnOverConnections(t *testing.T) {
	const size = 300 << 10
	text := strings.Repeat("0123456789", size/10)
	var received bytes.Buffer // by the process
	calls := 0
	script := func(st attached) error {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		calls++
		start := m.GetStart()
		switch calls {
		case 1:
			if start.GetFrom() != nil || start.GetResumed() || start.GetTailLines() != 7 {
				return fault.New(fault.Invalid, "first: %v", start)
			}
			err = errors.Join(st.Send(begun(0)), st.Send(wrote(90, "")), st.Send(wrote(90, "one ")))
		default:
			if f := start.GetFrom(); f.GetAttempt() != 4 || f.GetStdoutOffset() != int64(90+4*(calls-1)) || !start.GetResumed() || start.TailLines != nil {
				return fault.New(fault.Invalid, "again: %v", start)
			}
			err = errors.Join(st.Send(begun(uint64(received.Len()))), st.Send(wrote(start.GetFrom().GetStdoutOffset(), "more")))
		}
		for err == nil {
			if m, err = st.Recv(); err != nil {
				return err
			}
			received.Write(m.GetStdin()) // taken, and not told
			switch {
			case m.GetStdinEnd():
				return st.Send(over(5))
			case calls < 3 && received.Len() > calls*100<<10:
				return fault.New(fault.Unavailable, "the host goes away")
			}
			if calls == 3 {
				err = st.Send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_StdinTaken{StdinTaken: uint64(received.Len())}})
			}
		}
		return err
	}
	var out bytes.Buffer
	got, err := session.Attach(t.Context(), clientOf(t, host{attach: script}), session.AttachRequest{
		Start: &sandboxhostv1.AttachStart{TailLines: new(uint32(7)), Stdin: true, InputId: inputID},
		Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard,
		Note: func(format string, args ...any) { t.Errorf("got the note "+format, args...) },
	})
	if err != nil || got.Code != 5 || out.String() != "one moremore" || received.String() != text || calls != 3 {
		t.Errorf("got %+v, %v, %q, %d bytes received in %d calls, want %d", got, err, out.String(), received.Len(), calls, len(text))
	}
}

// A stream without an exit is a failure; what was refused, or nobody knows, is not asked for again.
func TestAttach_EXE4_AStreamWithoutAnExitIsAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		end   error
		began bool
		start *sandboxhostv1.AttachStart
	}{
		"refused":                       {fault.WithReason(fault.New(fault.Conflict, "it does not run"), "NOT_RUNNING"), false, nil},
		"never reached":                 {fault.New(fault.Unavailable, "gone"), false, nil},
		"nobody knows":                  {fault.WithReason(fault.New(fault.Unavailable, "unknown"), "EXIT_UNKNOWN"), true, nil},
		"input that cannot be resumed":  {fault.New(fault.Unavailable, "gone"), true, &sandboxhostv1.AttachStart{Stdin: true}},
		"the host knows less than once": {nil, true, &sandboxhostv1.AttachStart{Stdin: true, InputId: inputID}},
	} {
		calls := 0
		if c.start == nil {
			c.start = &sandboxhostv1.AttachStart{}
		}
		got, err := session.Attach(t.Context(), clientOf(t, host{attach: func(st attached) error {
			calls++
			if c.began {
				if err := st.Send(begun(9)); err != nil { // more than ever was sent
					return err
				}
			}
			if c.end == nil {
				<-st.Context().Done()
			}
			return c.end
		}}), session.AttachRequest{Start: c.start, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard})
		if err == nil || calls != 1 {
			t.Errorf("%s: got %+v, %v after %d calls", name, got, err, calls)
		}
	}
}

// What is not kept any more is told, and is no silence.
func TestAttach_TellsOfGaps(t *testing.T) {
	var notes []string
	_, err := session.Attach(t.Context(), clientOf(t, host{attach: func(st attached) error {
		return errors.Join(st.Send(begun(0)), st.Send(wrote(90, "")), st.Send(wrote(90, "a")), st.Send(wrote(100, "b")), st.Send(over(0)))
	}}), session.AttachRequest{
		Start: &sandboxhostv1.AttachStart{}, Stdout: io.Discard, Stderr: io.Discard,
		Note: func(format string, _ ...any) { notes = append(notes, format) },
	})
	if err != nil || len(notes) != 1 {
		t.Errorf("got %v and the notes %q, want one", err, notes)
	}
}

// Keys go on as they are, but for those that leave; the end is Ctrl-D.
func TestKeys(t *testing.T) {
	detach, err := session.ParseKeys("ctrl-p,ctrl-q")
	if err != nil || string(detach) != "\x10\x11" {
		t.Fatalf("got %q, %v", detach, err)
	}
	for typed, want := range map[string]struct {
		out string
		err error
	}{
		"":                 {"\x04", session.ErrNoEnd},
		"line\n":           {"line\n\x04", session.ErrNoEnd},
		"line":             {"line\x04\x04", session.ErrNoEnd},
		"a\x10\x11b":       {"a", session.ErrDetached},
		"a\x10b\n":         {"a\x10b\n\x04", session.ErrNoEnd},
		"\x10\x10\x11lost": {"\x10", session.ErrDetached},
		"a\n\x10":          {"a\n\x10\x04", session.ErrNoEnd},
	} {
		k := session.NewKeys(strings.NewReader(typed), detach)
		var got bytes.Buffer
		if _, err := got.ReadFrom(k); !errors.Is(err, want.err) || got.String() != want.out {
			t.Errorf("%q: got %q, %v, want %q, %v", typed, got.String(), err, want.out, want.err)
		}
	}
	for _, bad := range []string{"ctrl-", "ctrl-1", "ab", "ctrl-p,", " "} {
		if got, err := session.ParseKeys(bad); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: got %q, %v, want it refused", bad, got, err)
		}
	}
	got, err := session.Attach(t.Context(), clientOf(t, host{attach: func(st attached) error {
		err := st.Send(begun(0))
		<-st.Context().Done()
		return err
	}}), session.AttachRequest{
		Start: &sandboxhostv1.AttachStart{Stdin: true, InputId: inputID}, Stdin: session.NewKeys(strings.NewReader("\x10\x11"), detach),
		Stdout: io.Discard, Stderr: io.Discard,
	})
	if err != nil || !got.Detached {
		t.Errorf("got %+v, %v, want it left", got, err)
	}
}
