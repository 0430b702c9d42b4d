package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// topFirst is between the two readings of which the first figures are made.
	topFirst = time.Second
	// topEvery is between two tables where nobody says.
	topEvery = 2 * time.Second
	// clearScreen moves to the first line of a terminal and clears what is below.
	clearScreen = "\033[H\033[J"
)

var topColumns = []string{"NAME", "CPU", "MEMORY", "LIMIT", "PIDS", "READ", "WRITTEN", "RECEIVED", "SENT", "OOM"}

func (a *app) topCommand() *cobra.Command {
	t := &top{app: a}
	c := &cobra.Command{
		Use: "top", Short: "Show what sandboxes use", Args: args(cobra.NoArgs),
		Long: "Show what the sandboxes of this node use, and the machine.\n\n" +
			"CPU is of one processor: 100 % is one, fully used, since the reading before. MEMORY is\n" +
			"without the page cache, which the kernel takes back when it needs it. What was read,\n" +
			"written, received and sent counts from the beginning. What is not known is -.\n" +
			"With -o json or yaml the counters are printed as they were read.",
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	c.Flags().BoolVarP(&t.watch, "watch", "w", false, "go on, with a table for each reading")
	c.Flags().IntVarP(&t.rounds, "count", "n", 0, "with --watch, end after so many tables; 0 for never")
	c.Flags().DurationVar(&t.every, "interval", topEvery, "with --watch, time between two tables, 1s to 1h")
	return c
}

// top shows one reading after the other.
type top struct {
	app    *app
	watch  bool
	rounds int
	every  time.Duration

	before map[string]*sandboxhostv1.Usage // by what it is of; the reading before
	shown  int
}

// errTopDone ends a stream that was read far enough.
var errTopDone = errors.New("all tables shown")

func (t *top) run(ctx context.Context) error {
	every := topFirst
	if t.watch {
		every = t.every
	}
	switch {
	case every < time.Second || every > time.Hour:
		return exit.BadUsage("--interval %v: write 1s to 1h", every)
	case t.rounds < 0:
		return exit.BadUsage("--count %d: write 0 or more", t.rounds)
	}
	return t.app.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		err := n.WatchStats(ctx, every, t.round)
		switch {
		case errors.Is(err, errTopDone):
			return nil
		case errors.Is(err, context.Canceled):
			return context.Cause(ctx)
		}
		return err
	})
}

// round shows a reading. The first is only what the second is compared with.
func (t *top) round(round target.Stats) error {
	rows, now := t.rows(round)
	first := t.before == nil
	t.before = now
	if first && t.app.format == output.Table {
		return nil
	}
	if t.watch && t.app.format == output.Table && output.Terminal(t.app.out) {
		if _, err := io.WriteString(t.app.out, clearScreen); err != nil {
			return err
		}
	}
	if err := output.Print(t.app.out, t.app.format, topColumns, rows); err != nil {
		return err
	}
	t.shown++
	if !t.watch || t.rounds > 0 && t.shown >= t.rounds {
		return errTopDone
	}
	return nil
}

// rows are the lines of a reading, and what the next is compared with.
func (t *top) rows(round target.Stats) ([]output.Row, map[string]*sandboxhostv1.Usage) {
	now := map[string]*sandboxhostv1.Usage{"": round.Node.GetMachine()}
	machine := usageCells("(machine)", t.before[""], round.Node.GetMachine())
	rows := []output.Row{{ID: "(machine)", Cells: machine, Message: round.Node}}
	for _, s := range round.Sandboxes {
		one := fmt.Sprint(s.GetUid(), s.GetAttempt()) // counters may begin anew with the next
		now[one] = s.GetUsage()
		cells := usageCells(s.GetName(), t.before[one], s.GetUsage())
		if net := s.GetNetwork(); net != nil {
			cells[7], cells[8] = bytesCell(&net.ReceivedBytes), bytesCell(&net.SentBytes)
		}
		rows = append(rows, output.Row{ID: s.GetUid(), Cells: cells, Message: s})
	}
	return rows, now
}

func usageCells(name string, before, now *sandboxhostv1.Usage) []string {
	if now == nil {
		now = &sandboxhostv1.Usage{}
	}
	return []string{
		name, cpuCell(before, now), bytesCell(now.MemoryWorkingSetBytes), bytesCell(now.MemoryLimitBytes), countCell(now.Pids),
		bytesCell(now.IoReadBytes), bytesCell(now.IoWrittenBytes), "", "", countCell(now.OomKills),
	}
}

// cpuCell is the share of one processor between two readings of the same. There is none
// without two, and none where the counter began anew.
func cpuCell(before, now *sandboxhostv1.Usage) string {
	if before == nil || before.CpuUsageNanoseconds == nil || now.CpuUsageNanoseconds == nil {
		return ""
	}
	passed := now.GetReadSinceBoot().AsDuration() - before.GetReadSinceBoot().AsDuration()
	if passed <= 0 || now.GetCpuUsageNanoseconds() < before.GetCpuUsageNanoseconds() {
		return ""
	}
	used := float64(now.GetCpuUsageNanoseconds() - before.GetCpuUsageNanoseconds())
	return fmt.Sprintf("%.1f %%", used/float64(passed)*100)
}

func bytesCell(n *uint64) string {
	if n == nil {
		return ""
	}
	return output.Bytes(int64(*n)) //nolint:gosec // no machine has so many
}

func countCell(n *uint64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
