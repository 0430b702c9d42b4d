package filesystem

import (
	"strings"
	"testing"
)

func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	s, err := Measure(dir)
	if err != nil || s.Size <= 0 || s.Free <= 0 || s.Free > s.Size || s.Device == 0 || s.Path != dir {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := Measure(dir + "/none"); err == nil || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("of a path that is not there: %v", err)
	}
}

func TestSpace_CountsTheScarcer(t *testing.T) {
	for _, c := range []struct {
		s    Space
		want int
	}{
		{Space{Size: 100, Free: 15}, 85},
		{Space{Size: 1000, Free: 151}, 84},
		{Space{Size: 100, Free: 90, Inodes: 10, InodesFree: 1}, 90},
		{Space{Size: 100, Free: 0, Inodes: 0, InodesFree: 0}, 100},
		{Space{}, 0},
		{Space{Size: 1 << 62, Free: 1 << 61}, 50},
	} {
		if got := c.s.UsedPercent(); got != c.want {
			t.Errorf("%+v: got %d %%, want %d", c.s, got, c.want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{-1: "0 B", 0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 30: "5.0 GiB", 1<<63 - 1: "8.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
