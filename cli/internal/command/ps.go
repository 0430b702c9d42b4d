package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
)

func (a *app) psCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "ps", Short: "List sandboxes", Args: args(cobra.NoArgs),
		Long: "List the sandboxes of the cluster; with --node-socket, those of one node.\n" +
			"With --watch the list is followed by one line per change.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.ps(cmd.Context(), watch) },
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with a line per change")
	return c
}

func (a *app) ps(ctx context.Context, watch bool) error {
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withSandboxes(ctx, func(t sandboxes) error {
		if watch {
			l := &live{app: a, columns: sandboxColumns}
			return t.Watch(ctx, "", func(e sandbox.Event) error {
				if e.Sandbox == nil {
					return l.synced()
				}
				return l.changed(sandboxRow(time.Now(), e.Sandbox), e.Gone)
			})
		}
		list, err := t.List(ctx)
		if err != nil {
			return err
		}
		return output.Print(a.out, a.format, sandboxColumns, sandboxRows(list))
	})
}

// live prints a list that goes on: first all that is there, then a line per
// change. As JSON each line is {"event": ..., "record": ...}.
type live struct {
	app     *app
	columns []string
	first   []output.Row
	widths  []int
	started bool
	shown   map[string]string // by id: the line as it was printed last
}

func (l *live) synced() error {
	l.started, l.shown = true, map[string]string{}
	if l.app.format != output.Table {
		for _, r := range l.first {
			if err := l.print(r, "present"); err != nil {
				return err
			}
		}
		l.first = nil
		return nil
	}
	table := [][]string{l.columns}
	for _, r := range l.first {
		table = append(table, r.Cells)
		l.shown[r.ID] = l.text(r)
	}
	l.widths = output.Widths(table)
	_, err := fmt.Fprint(l.app.out, output.Align(table))
	l.first = nil
	return err
}

func (l *live) changed(row output.Row, gone bool) error {
	if !l.started {
		l.first = append(l.first, row)
		return nil
	}
	if gone {
		for i, name := range l.columns {
			switch {
			case name == "PHASE", name == "READY" && !slices.Contains(l.columns, "PHASE"):
				row.Cells[i] = "GONE"
			case name == "READY":
				row.Cells[i] = ""
			}
		}
		return l.print(row, "gone")
	}
	text := l.text(row)
	if l.app.format == output.Table && l.shown[row.ID] == text {
		return nil // what changed is in no column
	}
	l.shown[row.ID] = text
	return l.print(row, "changed")
}

// text is a row without its age, which differs each time.
func (l *live) text(row output.Row) string {
	var b strings.Builder
	for i, cell := range row.Cells {
		if l.columns[i] != "AGE" {
			fmt.Fprintf(&b, "%q", cell)
		}
	}
	return b.String()
}

func (l *live) print(row output.Row, event string) error {
	if l.app.format != output.JSON {
		return output.PrintLine(l.app.out, l.app.format, l.widths, row)
	}
	var record bytes.Buffer
	if err := output.PrintLine(&record, output.JSON, nil, row); err != nil {
		return err
	}
	text, err := json.Marshal(struct {
		Event  string          `json:"event"`
		Record json.RawMessage `json:"record"`
	}{event, record.Bytes()})
	if err != nil {
		return fmt.Errorf("encode change: %w", err)
	}
	_, err = fmt.Fprintf(l.app.out, "%s\n", text)
	return err
}
