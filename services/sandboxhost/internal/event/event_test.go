package event

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const warns = sandboxhostv1.EventSeverity_EVENT_SEVERITY_WARNING

func of(uid, reason string) *sandboxhostv1.Event {
	return &sandboxhostv1.Event{Uid: uid, Sandbox: "web", Severity: warns, Reason: reason}
}

// running is a store that runs on a file until stop is called.
func running(t *testing.T, path string) (s *Store, stop func()) {
	t.Helper()
	s = New(path, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancelCause(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	end := errors.New("the test ends it")
	go func() { done <- s.Run(ctx, func() { close(ready) }) }() // ended by stop
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	stop = func() {
		cancel(end)
		if err := <-done; !errors.Is(err, end) || strings.Contains(err.Error(), "\n") {
			t.Errorf("it ended with %v", err)
		}
	}
	return s, stop
}

// told is what a store has, in a few words.
func told(s *Store) string {
	all, _ := s.After(0, "", 0)
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = fmt.Sprintf("%s/%s x%d", e.GetUid(), e.GetReason(), e.GetCount())
	}
	return strings.Join(words, ", ")
}

func TestStore_CountsWhatRepeatsItself(t *testing.T) {
	s := New("", slog.Default())
	first, last := time.Unix(1000, 0), time.Unix(2000, 0)
	s.now = func() time.Time { return first }
	s.Note(of("a", "FAILED"), of("b", "FAILED"))
	s.now = func() time.Time { return last }
	s.Note(of("a", "FAILED"))
	if got, want := told(s), "b/FAILED x1, a/FAILED x2"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	all, _ := s.After(0, "a", 0)
	if e := all[0]; !e.GetFirstAt().AsTime().Equal(first) || !e.GetLastAt().AsTime().Equal(last) {
		t.Errorf("first %v and last %v, want %v and %v", e.GetFirstAt().AsTime(), e.GetLastAt().AsTime(), first, last)
	}
	for _, other := range []*sandboxhostv1.Event{
		{Uid: "a", Severity: warns, Reason: "FAILED", Message: "another"},
		{Uid: "a", Severity: warns, Reason: "FAILED", Container: "main"},
		{Uid: "a", Severity: sandboxhostv1.EventSeverity_EVENT_SEVERITY_NORMAL, Reason: "FAILED"},
	} {
		s.Note(other)
		if all, _ := s.After(0, "a", 1); all[0].GetCount() != 1 {
			t.Errorf("%v was taken for the same", other)
		}
	}
}

func TestStore_TimeThatIsGivenStays(t *testing.T) {
	s := New("", slog.Default())
	e := of("a", "CONTAINER_EXITED")
	e.LastAt = timestamppb.New(time.Unix(77, 0))
	s.Note(e)
	if all, _ := s.After(0, "", 0); all[0].GetLastAt().GetSeconds() != 77 || all[0].GetFirstAt().GetSeconds() != 77 {
		t.Errorf("got %v", all[0])
	}
	if e.GetSeq() != 0 {
		t.Error("the event of the caller was changed")
	}
}

func TestStore_KeepsTheNewest(t *testing.T) {
	s := New("", slog.Default())
	s.Note(of("quiet", "ACCEPTED"))
	for i := range maxPerSandbox + 10 {
		s.Note(of("loud", fmt.Sprint("R", i)))
	}
	if all, _ := s.After(0, "loud", 0); len(all) != maxPerSandbox || all[0].GetReason() != "R10" {
		t.Errorf("%d of one sandbox are kept, from %s", len(all), all[0].GetReason())
	}
	if all, _ := s.After(0, "quiet", 0); len(all) != 1 {
		t.Error("one that has much to tell drove out another")
	}
	for i := range maxEvents {
		s.Note(of(fmt.Sprint("u", i), "ACCEPTED"))
	}
	all, _ := s.After(0, "", 0)
	if len(all) != maxEvents || all[0].GetUid() != "u0" || len(s.each) != maxEvents || len(s.same) != maxEvents {
		t.Errorf("%d are kept, from %s; of %d sandboxes, %d different", len(all), all[0].GetUid(), len(s.each), len(s.same))
	}
}

func TestStore_AfterSelects(t *testing.T) {
	s := New("", slog.Default())
	s.Note(of("a", "ONE"), of("b", "TWO"), of("a", "THREE"))
	all, changed := s.After(0, "", 0)
	if len(all) != 3 || all[0].GetSeq() >= all[1].GetSeq() || all[1].GetSeq() >= all[2].GetSeq() {
		t.Fatalf("got %v", all)
	}
	if got, _ := s.After(all[1].GetSeq(), "", 0); len(got) != 1 || got[0].GetReason() != "THREE" {
		t.Errorf("after the second came %v", got)
	}
	if got, _ := s.After(0, "a", 1); len(got) != 1 || got[0].GetReason() != "THREE" {
		t.Errorf("the last one of a is %v", got)
	}
	select {
	case <-changed:
		t.Error("a change was told that was none")
	default:
	}
	s.Note(of("a", "ONE"))
	select {
	case <-changed:
	default:
		t.Error("a change was not told")
	}
	if got, _ := s.After(all[2].GetSeq(), "", 0); len(got) != 1 || got[0].GetReason() != "ONE" || got[0].GetCount() != 2 {
		t.Errorf("what happened again came as %v", got)
	}
}

func TestStore_ClipsWhatIsTooLong(t *testing.T) {
	s := New("", slog.Default())
	e := of("a", "RETRYING")
	e.Message = strings.Repeat("ä", maxMessage) + "\xff"
	s.Note(e)
	all, _ := s.After(0, "", 0)
	if m := all[0].GetMessage(); len(m) > maxMessage || !strings.HasSuffix(m, "ä…") {
		t.Errorf("the message has %d bytes and ends with %q", len(m), m[len(m)-6:])
	}
}

func TestStore_OutlivesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, stop := running(t, path)
	s.Note(of("a", "ONE"), of("b", "TWO"))
	s.Note(of("a", "ONE"))
	want, seq := told(s), s.seq
	killed := New(path, slog.Default()) // as one finds it after the other was killed here
	if err := killed.open(); err != nil {
		t.Fatal(err)
	}
	if got := told(killed); got != want || killed.seq != seq {
		t.Errorf("a next one finds %s up to %d, want %s up to %d", got, killed.seq, want, seq)
	}
	if err := killed.file.close(); err != nil {
		t.Error(err)
	}
	stop()
	s.Note(of("c", "LATE")) // nobody is harmed
}

func TestStore_GoesOnBehindATornEnd(t *testing.T) {
	for name, tail := range map[string]string{"half of one": "\x30\x08\x01", "zeros": strings.Repeat("\x00", 100), "noise": "\xff\xff\xff\xff\xff\xff\xff"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			s, stop := running(t, path)
			s.Note(of("a", "ONE"))
			stop()
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, append(whole, tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			s, stop = running(t, path)
			s.Note(of("a", "TWO"))
			stop()
			s, stop = running(t, path)
			defer stop()
			if got, want := told(s), "a/ONE x1, a/TWO x1"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestStore_FileStaysBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, stop := running(t, path)
	for i := range 2 * (maxEvents + slack) {
		s.Note(of(fmt.Sprint(i%3), "SAME"))
	}
	if s.file.entries > maxEvents+slack {
		t.Errorf("the file has %d entries for 3 events", s.file.entries)
	}
	want := told(s)
	stop()
	s, stop = running(t, path)
	defer stop()
	if got := told(s); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStore_WritesLaterWhatItCouldNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, stop := running(t, path)
	s.Note(of("a", "ONE"))
	s.mu.Lock()
	good := s.file.f
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.file.f = full // every write says that the disk is full
	s.mu.Unlock()
	s.Note(of("a", "TWO"))
	s.Note(of("a", "THREE"))
	if !s.file.owing {
		t.Error("it does not know that the file lacks something")
	}
	s.mu.Lock()
	s.file.f = good
	s.mu.Unlock()
	if err := full.Close(); err != nil {
		t.Error(err)
	}
	s.Note(of("a", "FOUR"))
	stop()
	s, stop = running(t, path)
	defer stop()
	if got, want := told(s), "a/ONE x1, a/TWO x1, a/THREE x1, a/FOUR x1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
