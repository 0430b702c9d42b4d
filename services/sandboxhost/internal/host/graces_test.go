package host_test

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/services/sandboxhost/internal/host"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func TestGraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), host.JournalFile)
	if _, err := host.Graces(path, "boot", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a journal: got %v, want ErrNotExist", err)
	}
	wish := func(grace *durationpb.Duration, containers ...*resourcev1.ContainerSpec) *sandboxhostv1.Wish {
		return &sandboxhostv1.Wish{Spec: &resourcev1.SandboxSpec{TerminationGracePeriod: grace, Containers: append(containers, &resourcev1.ContainerSpec{})}}
	}
	half := wish(durationpb.New(30 * time.Second))
	minute := &resourcev1.ContainerSpec{TerminationGracePeriod: durationpb.New(time.Minute)}
	records := map[id.Sandbox]*sandboxhostv1.SandboxRecord{
		"unset":      {Wish: wish(nil)},
		"none":       {Wish: wish(durationpb.New(0))},
		"longer one": {Wish: wish(durationpb.New(time.Second), minute)},
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
	got, err := host.Graces(path, "boot", 100*time.Second)
	want := map[id.Sandbox]time.Duration{
		"unset": 10 * time.Second, "none": 0, "longer one": time.Minute, "its own": 30 * time.Second, "under way": 20 * time.Second, "over": 0, "other boot": 30 * time.Second,
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
