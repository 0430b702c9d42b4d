package output

import (
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// redraw spaces the frames of a line that is redrawn.
const redraw = 100 * time.Millisecond

// Progress shows on standard error how far something got. On a terminal it is
// one line that is redrawn; elsewhere it is a line per new text, and nothing of
// bytes but the end. It is for one goroutine.
type Progress struct {
	w        io.Writer
	terminal bool
	last     string
	drawn    time.Time
	open     bool // a line is on the terminal and not ended
}

// NewProgress shows progress on w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, terminal: Terminal(w)} }

// Say shows a text in place of the one before. Elsewhere than on a terminal the
// same text is said once.
func (p *Progress) Say(text string) {
	if text == p.last {
		return
	}
	p.last = text
	if !p.terminal {
		p.print(text + "\n")
		return
	}
	p.draw(text)
}

// Watch shows a text on a terminal only.
func (p *Progress) Watch(text string) {
	if p.terminal && text != p.last {
		p.last = text
		p.draw(text)
	}
}

// Bytes shows a bar on a terminal, where total is known, and a count elsewhere
// only at its end.
func (p *Progress) Bytes(what string, done, total int64) {
	if !p.terminal || time.Since(p.drawn) < redraw && done != total {
		return
	}
	p.drawn = time.Now()
	p.draw(bar(what, done, total))
}

// Done ends the line with a last text; an empty one leaves no trace.
func (p *Progress) Done(text string) {
	if p.terminal && p.open {
		p.print("\r\033[K")
		p.open = false
	}
	if text != "" {
		p.print(text + "\n")
	}
	p.last = ""
}

func (p *Progress) draw(text string) {
	text = shown(text)
	if width, _ := Size(p.w); width > 1 && len(text) >= width {
		text = text[:width-1]
	}
	p.open = true
	p.print("\r\033[K" + text)
}

// print writes what nobody could be told about if it failed: standard error.
func (p *Progress) print(text string) { _, _ = io.WriteString(p.w, text) }

func bar(what string, done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%s  %s", what, Bytes(done))
	}
	const width = 30
	full := int(min(done, total) * width / total)
	return fmt.Sprintf("%s  [%s%s] %s / %s", what, strings.Repeat("#", full), strings.Repeat(".", width-full), Bytes(done), Bytes(total))
}

// Size is how many columns and rows the terminal has; both are 0 where w is none.
func Size(w any) (columns, rows int) {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}
