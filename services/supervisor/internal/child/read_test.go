package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/fault"
)

// write appends to the output of "a", as a child does.
func write(t *testing.T, dir, text string) {
	t.Helper()
	f, err := openOutput(dir, "a")
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %06d\n", i)
	}
	return b.String()
}

func readAll(t *testing.T, o *outputs, tail int) (text string, missed int64) {
	t.Helper()
	var b strings.Builder
	err := o.read(t.Context(), "a", Reading{Tail: tail}, func(data []byte, gap int64) error {
		if len(data) > pieceSize {
			t.Errorf("got a piece of %d bytes", len(data))
		}
		missed += gap
		b.Write(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), missed
}

func TestOutputs_TailCountsLinesOverBothFiles(t *testing.T) {
	dir := t.TempDir()
	o := newOutputs(dir)
	if text, _ := readAll(t, o, -1); text != "" {
		t.Errorf("got %q where nothing was written", text)
	}
	all := numbered(0, 20_000)
	write(t, dir, all)
	for range 2 { // in one file, and then in two
		for _, n := range []int{-1, 0, 1, 2, 3000, 19_999, 20_000, 20_001} {
			want := all
			if n >= 0 && n < 20_000 {
				want = numbered(20_000-n, 20_000)
			}
			for _, reader := range []*outputs{o, newOutputs(dir)} { // also one that begins afresh
				if got, missed := readAll(t, reader, n); got != want || missed != 0 {
					t.Errorf("tail %d: got %d bytes with %d missed, want %d", n, len(got), missed, len(want))
				}
			}
		}
		if _, err := o.trim("a", 120_000); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a.log.1")); err != nil {
		t.Errorf("the second round was not about two files: %v", err)
	}
	write(t, dir, "half")
	if got, _ := readAll(t, o, 1); got != "half" {
		t.Errorf("got %q, want the line that has no end yet", got)
	}
}

// A follower loses and repeats nothing while the file is trimmed under it.
func TestOutputs_FollowGoesOnOverATrim(t *testing.T) {
	dir := t.TempDir()
	o := newOutputs(dir)
	write(t, dir, numbered(0, 1000))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got bytes.Buffer
	done := errors.New("seen all")
	round := 1
	err := o.read(ctx, "a", Reading{Tail: 10, Follow: true}, func(data []byte, missed int64) error {
		if missed != 0 {
			t.Errorf("got %d bytes missed", missed)
		}
		got.Write(data)
		if !strings.HasSuffix(got.String(), fmt.Sprintf("line %06d\n", round*1000-1)) {
			return nil
		}
		if round == 10 {
			return done
		}
		write(t, dir, numbered(round*1000, (round+1)*1000))
		round++
		_, err := o.trim("a", 10_000)
		return err
	})
	if !errors.Is(err, done) || got.String() != numbered(990, 10_000) {
		t.Errorf("got %v and %d bytes, want each line once", err, got.Len())
	}
}

func TestOutputs_TrimsBetweenPieces(t *testing.T) {
	dir := t.TempDir()
	o := newOutputs(dir)
	write(t, dir, numbered(0, 20_000))
	var got bytes.Buffer
	err := o.read(t.Context(), "a", Reading{Tail: -1}, func(data []byte, missed int64) error {
		if missed != 0 {
			t.Errorf("got %d bytes missed at %d", missed, got.Len())
		}
		got.Write(data)
		if got.Len() > pieceSize { // once; what is behind is then in the older file
			return nil
		}
		_, err := o.trim("a", 120_000)
		return err
	})
	if err != nil || got.String() != numbered(0, 20_000) {
		t.Errorf("got %v and %d bytes, want all", err, got.Len())
	}
}

func TestOutputs_SaysWhatIsNotKeptAnyMore(t *testing.T) {
	dir := t.TempDir()
	o := newOutputs(dir)
	first, second, third := strings.Repeat("a", 100_000), strings.Repeat("b", 100_000), strings.Repeat("c", 60_000)
	write(t, dir, first)
	var got bytes.Buffer
	var missed int64
	err := o.read(t.Context(), "a", Reading{Tail: -1}, func(data []byte, gap int64) error {
		missed += gap
		if got.Len() == 0 { // two trims: the older file holds the second part now
			for _, part := range []string{second, third} {
				if _, err := o.trim("a", 50_000); err != nil {
					return err
				}
				write(t, dir, part)
			}
			if _, err := o.trim("a", 50_000); err != nil {
				return err
			}
		}
		got.Write(data)
		return nil
	})
	if err != nil || missed == 0 || int64(got.Len())+missed != int64(len(first)+len(second)+len(third)) {
		t.Errorf("got %v, %d bytes and %d missed, want all accounted for", err, got.Len(), missed)
	}
}

// What is written faster than it can be kept is dropped, and told.
func TestOutputs_DropsWhatIsTooMuch(t *testing.T) {
	dir := t.TempDir()
	o := newOutputs(dir)
	const limit, written = 64 << 10, 1 << 20
	write(t, dir, strings.Repeat("x", written))
	dropped, err := o.trim("a", limit)
	if err != nil || dropped < written-maxOlder*limit-8<<10 || dropped > written-maxOlder*limit {
		t.Errorf("got %d bytes dropped, %v, want all but the bound", dropped, err)
	}
	text, _ := readAll(t, o, -1)
	if int64(len(text))+dropped != written {
		t.Errorf("got %d bytes kept and %d dropped, want %d together", len(text), dropped, written)
	}
}

func TestReadOutput_UnknownComponent(t *testing.T) {
	r := New(Config{LogDir: t.TempDir()}, Deps{})
	err := r.ReadOutput(t.Context(), "../x", Reading{}, func([]byte, int64) error { return nil })
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
}
