package host_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func TestEndings(t *testing.T) {
	path := filepath.Join(t.TempDir(), host.JournalFile)
	if _, err := host.Endings(path, "boot", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a journal: got %v, want ErrNotExist", err)
	}
	wish := func(grace *durationpb.Duration, containers ...*resourcev1.ContainerSpec) *sandboxhostv1.Wish {
		return &sandboxhostv1.Wish{Spec: &resourcev1.SandboxSpec{TerminationGracePeriod: grace, Containers: append(containers, &resourcev1.ContainerSpec{Name: "last"})}}
	}
	half := wish(durationpb.New(30 * time.Second))
	leaving := &resourcev1.ContainerSpec{Name: "leaving", PreStop: &resourcev1.ExecAction{Command: []string{"leave"}}}
	left := []*sandboxhostv1.ContainerStop{{ContainerId: engine.ContainerID("left", "leaving", 3), PreStopOver: true}}
	minute := &resourcev1.ContainerSpec{Name: "own", TerminationGracePeriod: durationpb.New(time.Minute)}
	init := &resourcev1.ContainerSpec{Name: "init", Init: true}
	begun := []*sandboxhostv1.ContainerStop{{ContainerId: engine.ContainerID("own begun", "own", 3), BegunBoottime: durationpb.New(70 * time.Second)}}
	records := map[id.Sandbox]*sandboxhostv1.SandboxRecord{
		"unset":      {Wish: wish(nil)},
		"none":       {Wish: wish(durationpb.New(0))},
		"own":        {Wish: wish(durationpb.New(time.Second), minute, init), StopSignals: map[string]uint32{"own": uint32(syscall.SIGQUIT)}},
		"own begun":  {Wish: wish(nil, minute), BootId: "boot", Status: &resourcev1.SandboxStatus{Attempt: 3}, Stops: begun},
		"leaving":    {Wish: wish(nil, leaving), Status: &resourcev1.SandboxStatus{Attempt: 3}},
		"left":       {Wish: wish(nil, leaving), Status: &resourcev1.SandboxStatus{Attempt: 3}, Stops: left},
		"its own":    {Wish: half},
		"under way":  {Wish: half, BootId: "boot", StopSentBoottime: durationpb.New(90 * time.Second)},
		"over":       {Wish: half, BootId: "boot", StopSentBoottime: durationpb.New(time.Second)},
		"other boot": {Wish: half, BootId: "before", StopSentBoottime: durationpb.New(90 * time.Second)},
	}
	j, _, err := journal.Open(journal.Options{Path: path, Kind: host.JournalKind, Version: host.JournalVersion})
	if err != nil {
		t.Fatal(err)
	}
	err = j.Update(func(tx journal.Tx) error {
		var errs []error
		for uid, r := range records {
			errs = append(errs, journal.PutProto(tx, "sandboxes", string(uid), r))
		}
		return errors.Join(errs...)
	})
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := host.Endings(path, "boot", 100*time.Second)
	last := host.ContainerEnding{Name: "last", Signal: syscall.SIGTERM}
	own := host.ContainerEnding{Name: "own", Signal: syscall.SIGQUIT, Own: time.Minute, HasOwn: true}
	begunOwn := host.ContainerEnding{Name: "own", Signal: syscall.SIGTERM, Own: 30 * time.Second, HasOwn: true}
	after := func(grace time.Duration, containers ...host.ContainerEnding) host.Ending {
		return host.Ending{Grace: grace, Containers: append([]host.ContainerEnding{last}, containers...)}
	}
	want := map[id.Sandbox]host.Ending{
		"unset": after(10 * time.Second), "none": after(0), "its own": after(30 * time.Second), "under way": after(20 * time.Second),
		"over": after(0), "other boot": after(30 * time.Second),
		"own":       after(time.Second, own, host.ContainerEnding{Name: "init", Signal: syscall.SIGTERM}),
		"own begun": after(10*time.Second, begunOwn),
	}
	for uid, e := range want {
		for i := range e.Containers {
			e.Containers[i].ID = engine.ContainerID(uid, e.Containers[i].Name, records[uid].GetStatus().GetAttempt())
		}
	}
	if e := got["leaving"]; len(e.Containers) != 2 || !proto.Equal(e.Containers[1].PreStop, leaving) {
		t.Errorf("with a pre-stop command: got %+v", e)
	}
	if e := got["left"]; len(e.Containers) != 2 || e.Containers[1].PreStop != nil {
		t.Errorf("with a pre-stop command that was run: got %+v", e)
	}
	delete(got, "leaving")
	delete(got, "left")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
