// Package output owns what commands print as their result: tables, JSON, YAML or
// bare names, and progress while something is going on.
//
// A table is aligned and never cut: what is printed can be used. Results go to
// standard output and everything else to standard error; only a terminal gets
// lines that are redrawn. It must never ask anybody anything. In the trail it is
// where an answer becomes text.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"staddle.internal/cli/internal/manifest"
)

// Formats of a result.
const (
	Table = "table"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"
)

// Formats lists what -o takes.
func Formats() []string { return []string{Table, JSON, YAML, Name} }

// Known reports whether f is a format.
func Known(f string) bool { return slices.Contains(Formats(), f) }

// Row is one line of a table together with the whole thing that it is about.
type Row struct {
	// ID is what the format name prints: it is accepted where one is asked for.
	ID string
	// Cells of the table; an empty one is shown as "-".
	Cells []string
	// Message is what JSON and YAML print.
	Message proto.Message
}

// Print writes all rows in one format. JSON is a list and YAML a series of
// documents, also for one row and for none.
func Print(w io.Writer, format string, columns []string, rows []Row) error {
	switch format {
	case JSON:
		return printJSON(w, rows)
	case YAML:
		return printYAML(w, rows)
	case Name:
		for _, r := range rows {
			if _, err := fmt.Fprintln(w, r.ID); err != nil {
				return err
			}
		}
		return nil
	default:
		table := make([][]string, 0, len(rows)+1)
		table = append(table, columns)
		for _, r := range rows {
			table = append(table, r.Cells)
		}
		_, err := io.WriteString(w, Align(table))
		return err
	}
}

// PrintOne writes one row; as JSON it is no list.
func PrintOne(w io.Writer, format string, columns []string, row Row) error {
	if format != JSON {
		return Print(w, format, columns, []Row{row})
	}
	text, err := manifest.JSON(row.Message)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// PrintLine writes one row of something that goes on, as one line; as YAML, one
// document.
func PrintLine(w io.Writer, format string, widths []int, row Row) error {
	switch format {
	case JSON:
		text, err := manifest.JSON(row.Message)
		if err != nil {
			return err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, text); err != nil {
			return fmt.Errorf("encode line: %w", err)
		}
		line.WriteByte('\n')
		_, err = line.WriteTo(w)
		return err
	case YAML, Name:
		return Print(w, format, nil, []Row{row})
	default:
		_, err := io.WriteString(w, line(row.Cells, widths))
		return err
	}
}

func printJSON(w io.Writer, rows []Row) error {
	list := make([]json.RawMessage, len(rows))
	for i, r := range rows {
		text, err := manifest.JSON(r.Message)
		if err != nil {
			return err
		}
		list[i] = text
	}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return fmt.Errorf("encode list: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

func printYAML(w io.Writer, rows []Row) error {
	for _, r := range rows {
		text, err := manifest.YAML(r.Message)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

// gap is the space between two columns.
const gap = 3

// Align pads the cells of a table so that its columns line up. Nothing is cut,
// and no line ends with spaces.
func Align(table [][]string) string {
	widths := Widths(table)
	var b strings.Builder
	for _, cells := range table {
		b.WriteString(line(cells, widths))
	}
	return b.String()
}

// Widths returns the width of each column.
func Widths(table [][]string) []int {
	var widths []int
	for _, cells := range table {
		for i, c := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(shown(c)))
		}
	}
	return widths
}

func line(cells []string, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		c = shown(c)
		b.WriteString(c)
		if i < len(cells)-1 && i < len(widths) {
			b.WriteString(strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(c), 0)+gap))
		}
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// shown is a cell without what would break the table or drive the terminal.
func shown(cell string) string {
	if cell == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(cell, "?"))
}

// Terminal reports whether w is a terminal.
func Terminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
