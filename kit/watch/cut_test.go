package watch

import "testing"

func TestReader_IsCutOffWhenFarBehind(t *testing.T) {
	h := New[int, int]()
	h.limit = 10
	slow := h.Read()
	defer slow.Close()
	for i := range 12 {
		h.Set(i, i)
	}
	if !slow.CutOff() {
		t.Fatal("a reader 12 keys behind is not cut off at 10")
	}
	if ev, ok := slow.Next(); ok {
		t.Errorf("a reader that was cut off learned %v", ev)
	}
	seen := 0
	for ev := range h.Subscribe(t.Context()) {
		if ev.Kind == Synced {
			for i := range 12 {
				h.Set(100+i, i)
			}
			continue
		}
		seen++
	}
	if seen != 12 {
		t.Errorf("saw %d values, want the 12 of the snapshot and then the end", seen)
	}
	if len(h.readers) != 0 {
		t.Errorf("%d readers are left", len(h.readers))
	}
}
