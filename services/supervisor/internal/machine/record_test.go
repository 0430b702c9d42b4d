package machine

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"staddle.internal/kit/backoff"
)

// TestRecord_IsWhole fills every field of a table and finds it again after it was
// written down, read and resumed: also a field that was added since.
func TestRecord_IsWhole(t *testing.T) {
	then := time.Now()
	var m Member
	fill(t, reflect.ValueOf(&m).Elem(), then)
	want := Table{Members: map[string]*Member{"a": &m}, Stopping: true, Booted: true, Over: true, Failure: "why"}
	fields := reflect.ValueOf(want)
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Errorf("field %s of the table is not filled by this test", fields.Type().Field(i).Name)
		}
	}
	text, err := json.Marshal(want.Record(then))
	if err != nil {
		t.Fatal(err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	got := Plan{Components: []Component{{Name: "a"}}}.Resume(r, then)
	if got.Stopping != want.Stopping || got.Booted != want.Booted || got.Over != want.Over || got.Failure != want.Failure {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(*got.Members["a"], m) {
		t.Errorf("got  %+v\nwant %+v", *got.Members["a"], m)
	}
}

// fill sets every field to something other than zero.
func fill(t *testing.T, v reflect.Value, now time.Time) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Field(i)
		f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem() // also one that is not exported
		switch f.Interface().(type) {
		case time.Time:
			f.Set(reflect.ValueOf(now.Add(time.Duration(i+1) * time.Second)))
			continue
		case []string:
			f.Set(reflect.ValueOf([]string{"b"}))
			continue
		case Exit:
			code := 3
			f.Set(reflect.ValueOf(Exit{How: "exit code 3", Code: &code, Signal: "none"}))
			continue
		}
		switch {
		case f.Kind() == reflect.String:
			f.SetString("word")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.CanInt():
			f.SetInt(int64(i + 1))
		case f.CanUint():
			f.SetUint(uint64(i + 1))
		default:
			t.Fatalf("field %s is of a kind that a record does not hold", v.Type().Field(i).Name)
		}
	}
}

func TestResume_CountsOn(t *testing.T) {
	plan := Plan{
		Components: []Component{{Name: "a", StartTimeout: time.Minute}, {Name: "b", StartTimeout: time.Minute}},
		Backoff:    backoff.Policy{Initial: time.Second, Cap: time.Minute, Stable: time.Minute},
	}
	now := time.Now()
	table := plan.Start(now)
	fail := func(plan Plan) {
		table, _ = plan.Step(table, Event{Kind: Tick, At: now})
		table, _ = plan.Step(table, Event{Kind: SpawnFailed, Name: "a", At: now, Jitter: 0.5})
	}
	fail(plan)
	for range 3 {
		now = table.Members["a"].NextStart
		fail(plan)
	}
	wait := table.Members["a"].NextStart.Sub(now)
	record := table.Record(now)

	// Another program, another clock, and a graph that has changed.
	now = now.Add(-time.Hour)
	changed := Plan{Components: []Component{{Name: "a", StartTimeout: time.Minute}, {Name: "c", StartTimeout: time.Minute}}, Backoff: plan.Backoff}
	table = changed.Resume(record, now)
	if got := table.Members["a"].NextStart.Sub(now); got != wait {
		t.Errorf("got the next start in %s, want %s", got, wait)
	}
	if _, ok := table.Members["b"]; ok || table.Members["c"].State != Waiting {
		t.Errorf("got %v, want b gone and c waiting", table.Members)
	}
	now = table.Members["a"].NextStart
	fail(changed)
	if got := table.Members["a"].NextStart.Sub(now); got <= wait {
		t.Errorf("got a wait of %s after the next failure, want more than %s", got, wait)
	}
}
