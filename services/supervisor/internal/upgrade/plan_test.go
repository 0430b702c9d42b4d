package upgrade

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Whatever fails, each component ends with one binary, the same as all others:
// everything that was touched is put back in the reverse order, once.
func TestPlan_EndsWithOneVersion(t *testing.T) {
	order := []string{"a", "b", "c", "d"}
	broken := errors.New("broken")
	for fails := range len(order) + 1 { // none for the last
		for bad := range 1 << len(order) { // whose old binary fails as well
			t.Run(fmt.Sprintf("%d/%b", fails, bad), func(t *testing.T) {
				var forth, back []string
				p := Plan{Order: order}
				for s := p.Next(); s.Component != ""; s = p.Next() {
					i := slices.Index(order, s.Component)
					var err error
					if s.Old {
						back = append(back, s.Component)
						if bad&(1<<i) != 0 {
							err = broken
						}
					} else {
						forth = append(forth, s.Component)
						if i == fails {
							err = broken
						}
					}
					if len(forth)+len(back) > 2*len(order) {
						t.Fatalf("no end: %v and back %v", forth, back)
					}
					p = p.Took(err)
				}
				touched := order[:min(fails+1, len(order))]
				why, worse := p.Failure()
				if fails == len(order) {
					if why != "" || back != nil || !slices.Equal(forth, order) {
						t.Fatalf("nothing failed: forth %v, back %v, failure %q", forth, back, why)
					}
					return
				}
				want := slices.Clone(touched)
				slices.Reverse(want)
				if !slices.Equal(forth, touched) || !slices.Equal(back, want) || !strings.Contains(why, order[fails]) {
					t.Fatalf("forth %v, back %v, failure %q", forth, back, why)
				}
				for i, name := range order {
					told := slices.ContainsFunc(worse, func(w string) bool { return strings.HasPrefix(w, name+" ") })
					if told != (bad&(1<<i) != 0 && i <= fails) {
						t.Errorf("%s that cannot go back: told %v of %v", name, told, worse)
					}
				}
			})
		}
	}
}
