// Command bench measures a real node against the floor in one run and prints a
// table. It decides nothing: a slow machine never fails it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"staddle.internal/e2e/bed"
)

// figure is one line of the result.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Ours  float64 `json:"ours"`
	Floor float64 `json:"floor,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	// Reach is what DESIGN-level numbers ask for, as text.
	Reach string `json:"reach,omitempty"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == bareServer {
		serveBare(os.Args[2])
		return
	}
	out := flag.String("o", "", "file for the result as JSON")
	serial := flag.Int("n", 40, "sandboxes started one after the other")
	batch := flag.Int("batch", 50, "sandboxes started ten at a time")
	output := flag.Int64("output", 400, "MiB that one container prints")
	kills := flag.Int("kills", 200, "processes killed, spread over all")
	parts := flag.String("parts", strings.Join(allParts, ","), "what to measure, with commas between")
	only := flag.String("only", "", "kill this component alone")
	flag.Parse()
	p := program{out: *out, serial: *serial, batch: *batch, output: *output, kills: *kills, parts: strings.Split(*parts, ","), only: *only}
	for _, part := range p.parts {
		if !slices.Contains(allParts, part) {
			fmt.Fprintf(os.Stderr, "there is no part %q; the parts are %s\n", part, strings.Join(allParts, ", "))
			os.Exit(2)
		}
	}
	os.Exit(bed.Main(p))
}

// program runs the benchmark as a bed's test.
type program struct {
	out                  string
	serial, batch, kills int
	output               int64
	parts                []string
	only                 string
}

// allParts are what can be measured, in the order in which it is.
var allParts = []string{"start", "calls", "rest", "serial", "parallel", "network", "exec", "logs", "kills"}

// stop is what Fatal panics with, so that the cleanups run.
type stop struct{ text string }

// Run returns the exit code.
func (p program) Run() (code int) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	t := &harness{}
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(stop)
			if !ok {
				panic(r)
			}
			fmt.Fprintln(os.Stderr, s.text)
			t.failed = true
		}
		t.cleanup()
		if t.failed {
			code = 1
		}
	}()
	figures := measure(ctx, t, p)
	print(figures)
	if p.out != "" {
		raw, err := json.MarshalIndent(struct {
			At      time.Time `json:"at"`
			Figures []figure  `json:"figures"`
		}{time.Now().UTC(), figures}, "", "  ")
		if err = errors.Join(err, os.WriteFile(p.out, append(raw, '\n'), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return 0
}

func print(figures []figure) {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tOURS\tFLOOR\tRATIO\tREACH")
	for _, f := range figures {
		floor, ratio := "", ""
		if f.Floor != 0 {
			floor, ratio = fmt.Sprintf("%.2f %s", f.Floor, f.Unit), fmt.Sprintf("%.2f", f.Ratio)
		}
		fmt.Fprintf(w, "%s\t%.2f %s\t%s\t%s\t%s\n", f.Name, f.Ours, f.Unit, floor, ratio, f.Reach)
	}
	if err := w.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// harness is what a bed needs of a test.
type harness struct {
	cleanups []func()
	failed   bool
}

func (h *harness) Helper()           {}
func (h *harness) Cleanup(fn func()) { h.cleanups = append(h.cleanups, fn) }
func (h *harness) Failed() bool      { return h.failed }
func (h *harness) Fatal(args ...any) { panic(stop{fmt.Sprint(args...)}) }
func (h *harness) Fatalf(format string, args ...any) {
	panic(stop{fmt.Sprintf(format, args...)})
}
func (h *harness) Error(args ...any) { h.Errorf("%s", fmt.Sprint(args...)) }
func (h *harness) Errorf(format string, args ...any) {
	h.failed = true
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
func (h *harness) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (h *harness) cleanup() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
}
