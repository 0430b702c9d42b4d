package logs

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/id"
)

// told is what a reading gave.
type told struct {
	text   string
	begins []int64 // offsets of the chunks without data
	chunks int
}

func readAs(t *testing.T, s *Store, at Position, mode Mode) told {
	t.Helper()
	var got told
	var all strings.Builder
	err := s.Read(t.Context(), at, mode, func(c Chunk) error {
		if len(c.Data) == 0 {
			got.begins = append(got.begins, c.Offset)
			return nil
		}
		got.chunks++
		all.Write(c.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got.text = all.String()
	return got
}

var lastPut = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// put writes pieces, those that begin with E to standard error, and ends the streams.
// Each piece came a second after the one before, the last one at lastPut.
func put(t *testing.T, s *Store, pieces ...string) Position {
	t.Helper()
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := writeEnd(t, pipes.Stdout), writeEnd(t, pipes.Stderr)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	var indexes [2][]byte
	var ends [2]int
	begun := lastPut.Add(-time.Duration(len(pieces)-1) * time.Second)
	for i, p := range pieces {
		f, stream := out, 0
		if strings.HasPrefix(p, "E") {
			f, stream = errs, 1
		}
		write(t, f, []byte(p))
		indexes[stream] = binary.BigEndian.AppendUint64(indexes[stream], uint64(ends[stream]))
		indexes[stream] = binary.BigEndian.AppendUint64(indexes[stream], uint64(begun.Add(time.Duration(i)*time.Second).UnixNano()))
		ends[stream] += len(p)
	}
	shut(t, out, errs)
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true, Stderr: true}
	for i, st := range s.pair(uid, "web", 1) {
		if err := os.WriteFile(indexPath(st.dir, 0), indexes[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

func TestStore_TailCountsLinesOfBothStreams(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	pieces := []string{
		"O the first one is a line\n", "E the second one is a line\n", "O the third one is a line\n",
		"O the fourth one is a line\n", "E the fifth one has no end",
	}
	at := put(t, s, pieces...)
	for n, want := range []string{
		"", pieces[4], pieces[3] + pieces[4], pieces[2] + pieces[3] + pieces[4],
		pieces[1] + pieces[2] + pieces[3] + pieces[4], strings.Join(pieces, ""), strings.Join(pieces, ""),
	} {
		got := readAs(t, s, at, Mode{Tail: n})
		if got.text != want || len(got.begins) != 2 {
			t.Errorf("tail %d: got %q, beginning at %v; want %q", n, got.text, got.begins, want)
		}
	}
	at.Stderr = false
	if got := readAs(t, s, at, Mode{Tail: 1}); got.text != pieces[3] {
		t.Errorf("of standard output got %q", got.text)
	}
	at.StdoutOffset = int64(len(pieces[0]) + len(pieces[2]) + 3)
	if got := readAs(t, s, at, Mode{Tail: 9}); got.text != pieces[3][3:] {
		t.Errorf("behind an offset got %q", got.text)
	}
}

func TestStore_TailReachesOverSegmentsAndBlocks(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20) // segments of 256 KiB
	uid := id.NewSandbox()
	pipes, err := s.Open(uid, "web", 1, Default)
	if err != nil {
		t.Fatal(err)
	}
	out := writeEnd(t, pipes.Stdout)
	if err := pipes.Release(); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ä", 600_000) + "\n" // more than is kept
	write(t, out, []byte("first\n"+long))
	write(t, out, numbered(0, 3))
	shut(t, out)
	if err := s.Finish(t.Context(), uid, "web", 1); err != nil {
		t.Fatal(err)
	}
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true}
	if got := readAs(t, s, at, Mode{Tail: 2}); got.text != "line 1\nline 2\n" {
		t.Errorf("got the tail %.80q", got.text)
	}
	got := readAs(t, s, at, Mode{Tail: 4})
	if !strings.HasSuffix(long+string(numbered(0, 3)), got.text) || len(got.text) < 500_000 {
		t.Errorf("of the long line %d bytes were read", len(got.text))
	}
	if first := readAs(t, s, at, Mode{Tail: 100_000}).begins; len(first) != 1 || first[0] <= 0 {
		t.Errorf("the oldest that is kept was told to begin at %v", first)
	}
}

func TestStore_SinceLeavesOutWhatCameBefore(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	pieces := []string{"O first, and \n", "O second\n", "O third, it has no end, ", "O and goes on here\n", "E and an error\n"}
	at := put(t, s, pieces...)
	all := strings.Join(pieces, "")
	for _, tt := range []struct {
		ago  time.Duration
		want string
	}{
		{time.Hour, all},
		{3500 * time.Millisecond, all}, // a second more, which may be of that time
		{2500 * time.Millisecond, strings.Join(pieces[1:], "")},
		{500 * time.Millisecond, strings.Join(pieces[2:], "")}, // the line as a whole
		{-2 * indexLate, ""},
	} {
		got := readAs(t, s, at, Mode{Tail: -1, Since: lastPut.Add(-tt.ago)})
		if got.text != tt.want || len(got.begins) != 2 {
			t.Errorf("since %v ago: got %q, beginning at %v; want %q", tt.ago, got.text, got.begins, tt.want)
		}
	}
	if got := readAs(t, s, at, Mode{Tail: 1, Since: lastPut.Add(-time.Hour)}); got.text != pieces[4] {
		t.Errorf("with a tail got %q", got.text)
	}
}

func TestStore_TimedChunksHaveOneTime(t *testing.T) {
	s := newStore(t, t.TempDir(), newShelf(), 1<<20)
	var pieces []string
	for i := range 5 {
		pieces = append(pieces, fmt.Sprintf("O this is the message with number %d\n", i))
	}
	at := put(t, s, pieces...)
	at.Stderr = false
	joined, timed := readAs(t, s, at, Mode{Tail: -1}), readAs(t, s, at, Mode{Tail: -1, Timed: true})
	if joined.chunks != 1 || timed.text != joined.text {
		t.Errorf("got %d chunks %q, and timed %q", joined.chunks, joined.text, timed.text)
	}
	if timed.chunks != len(pieces) {
		t.Errorf("got %d chunks of %d times", timed.chunks, len(pieces))
	}
}
