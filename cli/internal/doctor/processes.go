package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/version"

	"staddle.internal/cli/internal/exit"
)

// answer is what one process said of itself.
type answer struct {
	name   string
	status *processv1.GetStatusResponse
	err    error
}

// askProcesses asks every process of the node on its own socket, whoever keeps it.
func askProcesses(ctx context.Context, o Options, p *part) {
	file := o.Paths.NodeFile()
	if _, err := os.Stat(file); os.IsNotExist(err) {
		p.problem("machine", fmt.Sprintf("there is no installation: %s does not exist", file), "staddle up, or name the right place with --root")
		return
	}
	node, err := config.LoadNode(file)
	if err != nil {
		p.problem("machine", "its configuration is wrong: "+err.Error(), "mend the file: what it says counts with the next start")
		return
	}
	var answers []answer
	for _, c := range node.Graph() {
		if c.Name != config.ContainerdName {
			answers = append(answers, answer{name: c.Name})
		}
	}
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i].ask(ctx, o.Paths) }) // waited for below
	}
	wg.Wait()
	judgeProcesses(p, answers)
}

func (a *answer) ask(ctx context.Context, paths config.Paths) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	a.err = reach(ctx, a.name, paths.Socket(a.name), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		a.status, err = processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
		return err
	})
}

// judgeProcesses says who does not answer, who is not ready, and who is of another
// version than this program.
func judgeProcesses(p *part, answers []answer) {
	var versions []string
	for _, a := range answers {
		logs := "staddle component logs " + a.name
		switch {
		case fault.KindOf(a.err) == fault.Denied:
			p.problem(a.name, a.err.Error(), exit.Hint(a.err))
		case a.err != nil:
			p.problem(a.name, "it does not answer: "+a.err.Error(), "staddle status, and "+logs)
		case a.status.GetState() != processv1.ProcessState_PROCESS_STATE_READY:
			p.problem(a.name, "it is not ready: "+a.status.GetReason(), logs)
		}
		if v := a.status.GetVersion(); v != "" {
			versions = append(versions, v)
			if v != version.String() {
				p.problem(a.name, fmt.Sprintf("its version is %s, that of this program %s", v, version.String()), "staddle upgrade")
			}
		}
	}
	p.fact(fmt.Sprintf("processes: %d of %d answer, version %s", len(versions), len(answers), strings.Join(unique(versions), " and ")))
}

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	if out == nil {
		out = []string{"unknown"}
	}
	return out
}
