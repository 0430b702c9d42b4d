package doctor

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/cli/internal/exit"
)

// fixWord is what mends most differences.
const fixWord = "staddle doctor --fix"

// askHost has sandboxhost compare its notes with containerd and the kernel.
func askHost(ctx context.Context, o Options, p *part) {
	var resp *sandboxhostv1.CheckHostResponse
	err := reach(ctx, "sandboxhost", o.HostSocket, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if err := answers(ctx, conn); err != nil {
			return err
		}
		resp, err = sandboxhostv1.NewCheckServiceClient(conn).CheckHost(ctx, &sandboxhostv1.CheckHostRequest{Fix: o.Fix})
		return err
	})
	if err != nil {
		do := exit.Hint(err)
		if do == "" {
			do = "staddle status; once sandboxhost and containerd are ready, this again"
		}
		p.problem("sandboxhost", "what is on this machine could not be compared with its notes: "+err.Error(), do)
		return
	}
	for _, d := range resp.GetDifferences() {
		p.findings = append(p.findings, differs(d, o.Fix))
	}
	if more := resp.GetMoreDifferences(); more > 0 {
		p.problem("sandboxhost", fmt.Sprintf("%d more differences are not shown", more), fixWord)
	}
	for _, u := range resp.GetUncompared() {
		p.note("sandbox", fmt.Sprintf("%s was not compared: %s", nameOf(u.GetName(), u.GetUid()), u.GetReason()), "this again, once it is at rest")
	}
	p.fact(fmt.Sprintf("containerd: version %s", resp.GetContainerdVersion()))
	p.fact(fmt.Sprintf("compared: sandboxes %d, objects %d", resp.GetSandboxes(), resp.GetObjects()))
}

// answers makes sure that somebody is there: whoever supervises a process holds its
// socket while it is away, and a call would wait for it.
func answers(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, err := processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
	return err
}

// differs makes a sentence of a difference.
func differs(d *sandboxhostv1.Difference, fixing bool) Finding {
	f := Finding{State: Problem, Part: kindWord(d.GetKind()), Difference: d}
	missing := d.GetDeviation() == sandboxhostv1.Deviation_DEVIATION_MISSING
	owner := ""
	if d.GetSandboxUid() != "" {
		owner = " of sandbox " + nameOf(d.GetSandboxName(), d.GetSandboxUid())
	}
	switch {
	case d.GetKind() == sandboxhostv1.ObjectKind_OBJECT_KIND_NETWORK:
		f.What = d.GetName()
	case missing:
		f.What = d.GetName() + owner + " is missing"
	case d.GetSince() != nil:
		f.What = d.GetName() + owner + " is left over, from " + d.GetSince().AsTime().Local().Format("2006-01-02 15:04:05")
	default:
		f.What = d.GetName() + owner + " is left over"
	}
	switch {
	case d.GetFixed():
		f.State = Fixed
	case d.GetRemedy() == sandboxhostv1.Remedy_REMEDY_RESTART_SANDBOX:
		name := nameOf(d.GetSandboxName(), d.GetSandboxUid())
		f.Do = fmt.Sprintf("staddle stop %s, then staddle start %s", name, name)
	case fixing:
		f.What += "; not mended: " + d.GetError()
		f.Do = "look at staddle component logs sandboxhost, then " + fixWord
	default:
		f.Do = fixWord
	}
	return f
}

func nameOf(name, uid string) string {
	if name == "" {
		return uid
	}
	return name
}

// kindWord is a kind as people write it, such as "task folder".
func kindWord(k sandboxhostv1.ObjectKind) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(k.String(), "OBJECT_KIND_"), "_", " "))
}
