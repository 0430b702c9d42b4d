package node

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/watch"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	yes     = resourcev1.ConditionState_CONDITION_STATE_TRUE
	no      = resourcev1.ConditionState_CONDITION_STATE_FALSE
	unknown = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN
)

// fakePressure says what it is told to say.
type fakePressure struct {
	hub *watch.Hub[struct{}, []*resourcev1.Condition]
}

func (f *fakePressure) say(all ...*resourcev1.Condition) { f.hub.Set(struct{}{}, all) }

func (f *fakePressure) Follow(ctx context.Context, tell func([]*resourcev1.Condition)) {
	for ev := range f.hub.Subscribe(ctx) {
		if ev.Kind != watch.Synced {
			tell(ev.Value)
		}
	}
}

func pressed(kind string, state resourcev1.ConditionState, reason string) *resourcev1.Condition {
	return &resourcev1.Condition{Type: kind, State: state, Reason: reason, Since: timestamppb.Now()}
}

func TestNode_TellsOfPressureAndStaysReady(t *testing.T) {
	inBubble(t, func(w *world) {
		w.crash(context.Canceled)
		f := &fakePressure{hub: watch.New[struct{}, []*resourcev1.Condition]()}
		w.pressure = f
		w.start()
		w.up()
		wants := func(when string, memory, disk resourcev1.ConditionState, reason string) {
			t.Helper()
			w.after(time.Second)
			w.wantReady(when, true)
			status, _, _, _ := w.cluster.look()
			m, d := find(status, "MemoryPressure"), find(status, "DiskPressure")
			if m.GetState() != memory || d.GetState() != disk || m.GetReason() != reason && memory == yes {
				t.Errorf("%s: got %v", when, status.GetConditions())
			}
			if n := len(w.node.Presence().GetConditions()); n != 6 {
				t.Errorf("%s: presence has %d conditions", when, n)
			}
			if last := status.GetConditions()[len(status.GetConditions())-1]; last.GetType() != "Ready" {
				t.Errorf("%s: the last condition is %s", when, last.GetType())
			}
		}
		wants("nobody has said", unknown, unknown, "")
		f.say(pressed("MemoryPressure", no, ""), pressed("DiskPressure", no, ""), pressed("PIDPressure", no, ""))
		wants("all is well", no, no, "")
		f.say(pressed("MemoryPressure", yes, "1 MiB"), pressed("DiskPressure", no, ""), pressed("PIDPressure", no, ""))
		wants("short of memory", yes, no, "1 MiB")
		f.say()
		wants("the host is away", yes, unknown, "1 MiB")
		f.say(pressed("MemoryPressure", no, ""), pressed("DiskPressure", yes, "full"), pressed("PIDPressure", no, ""))
		wants("short of disk", no, yes, "")
		armor := func(when string, want resourcev1.ConditionState, reason string) {
			t.Helper()
			wants(when, no, no, "")
			status, _, _, _ := w.cluster.look()
			if got := find(status, "AppArmor"); got.GetState() != want || got.GetReason() != reason {
				t.Errorf("%s: got %v, want %v %q", when, got, want, reason)
			}
		}
		well := []*resourcev1.Condition{pressed("MemoryPressure", no, ""), pressed("DiskPressure", no, ""), pressed("PIDPressure", no, "")}
		f.say(append(well, pressed("AppArmor", no, "no parser"))...)
		armor("a machine without AppArmor", no, "no parser")
		f.say(well...)
		armor("nobody speaks of AppArmor", no, "no parser")
		f.say(append(well, pressed("AppArmor", yes, ""))...)
		armor("a machine with AppArmor", yes, "")
		_, writes, _, _ := w.cluster.look()
		w.after(10 * time.Minute)
		if _, again, _, _ := w.cluster.look(); again != writes {
			t.Errorf("%d statuses written at rest", again-writes)
		}
	})
}

// host is a sandboxhost whose streams say one thing and end.
type host struct {
	sandboxhostv1.PressureServiceClient
	streams chan grpc.ServerStreamingClient[sandboxhostv1.WatchPressureResponse]
}

func (h host) WatchPressure(context.Context, *sandboxhostv1.WatchPressureRequest, ...grpc.CallOption) (
	grpc.ServerStreamingClient[sandboxhostv1.WatchPressureResponse], error,
) {
	select {
	case s := <-h.streams:
		return s, nil
	default:
		return nil, fault.New(fault.Unavailable, "away")
	}
}

type once struct {
	grpc.ServerStreamingClient[sandboxhostv1.WatchPressureResponse]
	said *bool
}

func (o once) Recv() (*sandboxhostv1.WatchPressureResponse, error) {
	if *o.said {
		return nil, fault.New(fault.Unavailable, "the stream ended")
	}
	*o.said = true
	return &sandboxhostv1.WatchPressureResponse{
		Conditions:  []*resourcev1.Condition{pressed("DiskPressure", yes, "full")},
		Confinement: []*resourcev1.Condition{pressed("AppArmor", yes, "")},
	}, nil
}

func TestPressureOf_SaysWhenNobodyAnswers(t *testing.T) {
	h := host{streams: make(chan grpc.ServerStreamingClient[sandboxhostv1.WatchPressureResponse], 1)}
	h.streams <- once{said: new(bool)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var heard []int
	pressureOf{h}.Follow(ctx, func(all []*resourcev1.Condition) {
		heard = append(heard, len(all))
		if len(heard) == 2 {
			cancel()
		}
	})
	if len(heard) != 2 || heard[0] != 2 || heard[1] != 0 {
		t.Errorf("heard %v, want two conditions, and then that nobody says", heard)
	}
}
