// Package doctor finds out what is wrong with this machine as a node: whether it
// has what Staddle needs, whether every process answers, and whether the notes of
// sandboxhost and storage say what containerd and the kernel have.
//
// Each part is asked by itself, and one that cannot be asked is a finding too: what
// is left is asked all the same. It must never change anything but through those two, and never take silence for health. In the trail it stands outside.
package doctor

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/target"
)

// askLimit bounds one question to a process.
const askLimit = 5 * time.Second

// State says what a finding is.
type State string

// The states of findings.
const (
	// Problem: somebody has to do something.
	Problem State = "problem"
	// Fixed: it was a problem, and was mended.
	Fixed State = "fixed"
	// Note: worth to know; nothing has to be done.
	Note State = "note"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	// State of it.
	State State
	// Part that it is about: "machine", the name of a process, or the kind of an
	// object, such as "interface".
	Part string
	// What is wrong, in one sentence.
	What string
	// Do is what to do. Empty if nothing is to be done.
	Do string
	// Difference is what sandboxhost says, if it is about an object.
	Difference *sandboxhostv1.Difference
	// Volume is what storage says, if it is about a volume.
	Volume *storagev1.VolumeDifference
}

// Message is the finding for programs.
func (f Finding) Message() *structpb.Struct {
	fields := map[string]*structpb.Value{
		"state": structpb.NewStringValue(string(f.State)), "part": structpb.NewStringValue(f.Part),
		"what": structpb.NewStringValue(f.What), "do": structpb.NewStringValue(f.Do),
	}
	if d := f.Difference; d != nil {
		fields["kind"], fields["name"] = structpb.NewStringValue(kindWord(d.GetKind())), structpb.NewStringValue(d.GetName())
		fields["sandbox_uid"], fields["sandbox_name"] = structpb.NewStringValue(d.GetSandboxUid()), structpb.NewStringValue(d.GetSandboxName())
		fields["missing"] = structpb.NewBoolValue(d.GetDeviation() == sandboxhostv1.Deviation_DEVIATION_MISSING)
		if d.GetSince() != nil {
			fields["since"] = structpb.NewStringValue(d.GetSince().AsTime().Format(time.RFC3339))
		}
	}
	if d := f.Volume; d != nil {
		fields["kind"], fields["name"] = structpb.NewStringValue(faultWord(d.GetFault())), structpb.NewStringValue(d.GetPath())
		fields["volume_uid"] = structpb.NewStringValue(d.GetUid())
		fields["missing"] = structpb.NewBoolValue(d.GetFault() == storagev1.VolumeFault_VOLUME_FAULT_NOT_MOUNTED)
	}
	return &structpb.Struct{Fields: fields}
}

// Report is all that was found.
type Report struct {
	// Findings, what the machine lacks first.
	Findings []Finding
	// Facts are sentences about what was looked at.
	Facts []string
}

// Healthy says that nobody has to do anything.
func (r Report) Healthy() bool {
	for _, f := range r.Findings {
		if f.State == Problem {
			return false
		}
	}
	return true
}

// Options say where to look.
type Options struct {
	// Paths of the installation.
	Paths config.Paths
	// HostSocket is that of sandboxhost.
	HostSocket string
	// Fix lets sandboxhost mend what it can.
	Fix bool
}

// part is what one of the questions gave.
type part struct {
	findings []Finding
	facts    []string
}

func (p *part) problem(about, what, do string) {
	p.findings = append(p.findings, Finding{State: Problem, Part: about, What: what, Do: do})
}

func (p *part) note(about, what, do string) {
	p.findings = append(p.findings, Finding{State: Note, Part: about, What: what, Do: do})
}

func (p *part) fact(sentence string) { p.facts = append(p.facts, sentence) }

// Examine asks everything at once and returns what was found.
func Examine(ctx context.Context, o Options) Report {
	questions := []func(context.Context, Options, *part){askMachine, askProcesses, askContainerd, askHost, askStorage}
	parts := make([]part, len(questions))
	var wg sync.WaitGroup
	for i, ask := range questions {
		wg.Go(func() { ask(ctx, o, &parts[i]) }) // waited for below
	}
	wg.Wait()
	var r Report
	for _, p := range parts {
		r.Findings = append(r.Findings, p.findings...)
		r.Facts = append(r.Facts, p.facts...)
	}
	return r
}

// reach connects to the socket of a process, for a short while.
func reach(ctx context.Context, name, socket string, use func(context.Context, *grpc.ClientConn) error) error {
	conn, err := target.Socket(ctx, name, socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what it said counts
	return target.Refused(name, socket, use(ctx, conn))
}
