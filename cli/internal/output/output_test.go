package output_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/cli/internal/output"
)

// TestAlign_NothingIsCut is CLI-4: what is printed can be used.
func TestAlign_NothingIsCut(t *testing.T) {
	long := strings.Repeat("x", 200)
	got := output.Align([][]string{{"NAME", "UID", "MESSAGE"}, {"web", long, ""}, {"größer", "1", "two\nlines\x1b[31m"}})
	want := "NAME     " + "UID" + strings.Repeat(" ", 200) + "MESSAGE\n" +
		"web      " + long + "   -\n" +
		"größer   1" + strings.Repeat(" ", 202) + "two lines [31m\n"
	if got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

func TestProgress_WithoutATerminalSaysEachTextOnceAndDrawsNothing(t *testing.T) {
	var b strings.Builder
	p := output.NewProgress(&b)
	p.Say("pulling")
	p.Say("pulling")
	p.Watch("only on a terminal")
	p.Bytes("pulling", 1, 2)
	p.Bytes("pulling", 2, 2)
	p.Done("")
	if b.String() != "pulling\n" {
		t.Errorf("got %q", b.String())
	}
}

func TestTerminal_IsNotAFileOrABuffer(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if output.Terminal(f) || output.Terminal(&strings.Builder{}) {
		t.Error("a file and a buffer are no terminals")
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for want, d := range map[string]time.Duration{"0s": -time.Hour, "59s": 59 * time.Second, "1m": time.Minute, "47h": 47 * time.Hour, "2d": 48 * time.Hour} {
		if got := output.Age(now, timestamppb.New(now.Add(-d))); got != want {
			t.Errorf("Age(%s) = %q, want %q", d, got, want)
		}
	}
	if got := output.Age(now, nil); got != "" {
		t.Errorf("age of no time is %q", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 64 << 20: "64.0 MiB", 3 << 40: "3.0 TiB"} {
		if got := output.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}
