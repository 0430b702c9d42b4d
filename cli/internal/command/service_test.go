package command

import (
	"strings"
	"testing"
	"time"
)

// Ports of the node go to the port that is named, and are shown as they were given; what
// is unclear is refused.
func TestServiceSpec_NodePorts(t *testing.T) {
	ports := []string{"http=80:8080", "dns=53/udp", "dns-tcp=53"}
	for name, tt := range map[string]struct {
		given []string
		want  string // the ports as they are shown
		wrong string
	}{
		"none":            {want: "http=80:8080 dns=53/udp dns-tcp=53"},
		"by name":         {given: []string{"http=30080"}, want: "http=80:8080@30080 dns=53/udp dns-tcp=53"},
		"by number":       {given: []string{"80=127.0.0.1:30080"}, want: "http=80:8080@127.0.0.1:30080 dns=53/udp dns-tcp=53"},
		"of two":          {given: []string{"dns=30053", "http=30080"}, want: "http=80:8080@30080 dns=53/udp@30053 dns-tcp=53"},
		"of no port":      {given: []string{"https=30443"}, wrong: "no --port"},
		"of several":      {given: []string{"53=30053"}, wrong: "several"},
		"twice":           {given: []string{"http=30080", "80=30081"}, wrong: "already"},
		"no number":       {given: []string{"http=x"}, wrong: "write PORT="},
		"without a port":  {given: []string{"30080"}, wrong: "write PORT="},
		"out of bounds":   {given: []string{"http=65536"}, wrong: "write PORT="},
		"nothing at left": {given: []string{"=30080"}, wrong: "no --port"},
	} {
		spec, err := serviceSpec([]string{"app=web"}, ports, time.Duration(0))
		if err != nil {
			t.Fatal(err)
		}
		err = addNodePorts(spec, tt.given)
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: got %v, want %q", name, err, tt.wrong)
			}
			continue
		}
		var shown []string
		for _, p := range spec.GetPorts() {
			shown = append(shown, portText(p))
		}
		if got := strings.Join(shown, " "); err != nil || got != tt.want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, tt.want)
		}
	}
}
