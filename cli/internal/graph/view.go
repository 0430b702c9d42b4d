package graph

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/cli/internal/output"
)

// Depths says how deep each component lies: below the deepest of what it needs.
// Components must come after all that they need.
func Depths(components []*supervisorv1.Component) []int {
	depth := map[string]int{}
	out := make([]int, len(components))
	for i, c := range components {
		for _, need := range append(append([]string{}, c.GetNeeds()...), c.GetOrderOnly()...) {
			if d, known := depth[need]; known {
				out[i] = max(out[i], d+1)
			}
		}
		depth[c.GetName()] = out[i]
	}
	return out
}

// Word is the state of a component in lower case: "ready", "backing off".
func Word(s supervisorv1.ComponentState) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.String(), "COMPONENT_STATE_")), "_", " ")
}

// Cells is the line of a component in the table of "staddle status".
func Cells(now time.Time, c *supervisorv1.Component, depth int) []string {
	name := c.GetName()
	if depth > 0 {
		name = strings.Repeat("  ", depth-1) + "└ " + name
	}
	return []string{
		name, Word(c.GetState()), output.Age(now, c.GetSince()), positive(int64(c.GetPid())), positive(int64(c.GetStarts())),
		strings.Join(append(append([]string{}, c.GetNeeds()...), c.GetOrderOnly()...), ","), Reason(c),
	}
}

// Reason says why a component is not ready, with how its last process ended
// where that is why.
func Reason(c *supervisorv1.Component) string {
	switch {
	case c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_READY:
		return ""
	case c.GetReason() == "":
		return c.GetLastExit()
	case c.GetLastExit() != "" && !strings.Contains(c.GetReason(), c.GetLastExit()):
		return c.GetReason() + " (last: " + c.GetLastExit() + ")"
	default:
		return c.GetReason()
	}
}

func positive(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// Short is the table of a graph that comes up: name, state and reason.
func Short(now time.Time, g *supervisorv1.GetGraphResponse) string {
	table := make([][]string, len(g.GetComponents()))
	depths := Depths(g.GetComponents())
	for i, c := range g.GetComponents() {
		cells := Cells(now, c, depths[i])
		table[i] = []string{cells[0], cells[1], cells[2], cells[6]}
	}
	return output.Align(table)
}

// View shows a graph that changes: in place on a terminal, and elsewhere as the
// first whole and then a line per component that changed.
type View struct {
	w    io.Writer
	live bool
	size func() (columns, rows int) // of the terminal
	rows int                        // taken by the last frame
	last map[string]*supervisorv1.Component
}

// NewView shows on w; live draws each state in the place of the one before.
func NewView(w io.Writer, live bool) *View {
	return &View{w: w, live: live, size: func() (int, int) { return output.Size(w) }}
}

// Show shows the next state; whole is its full table.
func (v *View) Show(g *supervisorv1.GetGraphResponse, whole func() string) error {
	first := v.last == nil
	changed := v.changes(g)
	switch {
	case v.live:
		return v.redraw(whole())
	case first:
		_, err := io.WriteString(v.w, whole())
		return err
	}
	for _, c := range changed {
		if _, err := io.WriteString(v.w, Line(c)); err != nil {
			return err
		}
	}
	return nil
}

// Line is one component's state as a line of its own.
func Line(c *supervisorv1.Component) string {
	if why := Reason(c); why != "" {
		return fmt.Sprintf("%-14s %s: %s\n", c.GetName(), Word(c.GetState()), why)
	}
	return fmt.Sprintf("%-14s %s\n", c.GetName(), Word(c.GetState()))
}

func (v *View) changes(g *supervisorv1.GetGraphResponse) []*supervisorv1.Component {
	var changed []*supervisorv1.Component
	next := make(map[string]*supervisorv1.Component, len(g.GetComponents()))
	for _, c := range g.GetComponents() {
		if old, known := v.last[c.GetName()]; !known || !Same(old, c) {
			changed = append(changed, c)
		}
		next[c.GetName()] = c
	}
	v.last = next
	return changed
}

func (v *View) redraw(text string) error {
	up := ""
	if v.rows > 0 {
		up = fmt.Sprintf("\033[%dA\033[J", v.rows)
	}
	text, v.rows = fit(text, v.size)
	_, err := io.WriteString(v.w, up+text)
	return err
}

// fit makes a text one that can be drawn over, and says how many rows of the
// terminal it takes: a long line takes several. What would scroll out of the
// terminal cannot be drawn over; then lines are cut, and the last ones left out.
func fit(text string, size func() (columns, rows int)) (string, int) {
	columns, rows := size()
	lines := strings.SplitAfter(text, "\n")
	lines = lines[:len(lines)-1]
	if columns < 2 || rows < 2 {
		return text, len(lines)
	}
	taken := 0
	for _, l := range lines {
		taken += max(1, (utf8.RuneCountInString(l)-1+columns-1)/columns)
	}
	if taken < rows {
		return text, taken
	}
	lines = lines[:min(len(lines), rows-1)]
	for i, l := range lines {
		if r := []rune(l); len(r)-1 > columns {
			lines[i] = string(r[:columns]) + "\n"
		}
	}
	return strings.Join(lines, ""), len(lines)
}
