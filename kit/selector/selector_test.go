package selector_test

import (
	"fmt"
	"strings"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/selector"
)

func TestParse(t *testing.T) {
	labels := map[string]string{"app": "web", "tier": "", "x/y": "a=b"}
	for text, want := range map[string]bool{
		"": true, "app=web": true, "app=web,tier=": true, "app=web,app=web": true, "x/y=a=b": true,
		"app=db": false, "zone=": false, "app=web,zone=a": false,
	} {
		s, err := selector.Parse(text)
		if err != nil || s.Matches(labels) != want {
			t.Errorf("%q: got %v, %v, want %v", text, s.Matches(labels), err, want)
		}
	}
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprintf("k%d=", i))
	}
	for _, text := range []string{"app", "=web", "app=web,", "tier!=db", "app=a,app=b", strings.Join(many, ",")} {
		if s, err := selector.Parse(text); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: got %v, %v, want Invalid", text, s, err)
		}
	}
}
