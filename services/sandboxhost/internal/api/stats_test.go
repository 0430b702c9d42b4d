package api

import (
	"fmt"
	"testing"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func TestStatsPageOf(t *testing.T) {
	var all []*sandboxhostv1.SandboxStats
	for i := range 25 {
		all = append(all, &sandboxhostv1.SandboxStats{Uid: fmt.Sprintf("%02d", i)})
	}
	var got []string
	pages := 0
	for after := ""; ; pages++ {
		page, next := statsPageOf(all, after, 10)
		for _, s := range page {
			got = append(got, s.GetUid())
		}
		if next == "" {
			break
		}
		after = next
	}
	if len(got) != 25 || got[0] != "00" || got[24] != "24" || pages != 2 {
		t.Errorf("got %v in %d pages and the last", got, pages)
	}
	if page, next := statsPageOf(all, "09x", 10); len(page) != 10 || page[0].GetUid() != "10" || next != "19" {
		t.Errorf("after one that is gone: got %v, %q", page, next)
	}
	if page, next := statsPageOf(nil, "", 10); len(page) != 0 || next != "" {
		t.Errorf("of none: got %v, %q", page, next)
	}
}
