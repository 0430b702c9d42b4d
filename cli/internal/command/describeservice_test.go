package command

import (
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// A service is described with its ports and the sandboxes that have all of its labels, on
// whatever node, and with no other.
func TestServiceDescription(t *testing.T) {
	sandbox := func(name, node string, labels map[string]string) *resourcev1.Resource {
		return &resourcev1.Resource{
			Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Name: name, Labels: labels},
			Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{
				Placement: &resourcev1.SandboxPlacement{Node: node},
				Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, Addresses: []string{"10.77.0.2"},
					Conditions: []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}}},
			}},
		}
	}
	r := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SERVICE, Name: "web", Uid: "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
		Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{
			Spec: &resourcev1.ServiceSpec{Selector: map[string]string{"app": "web", "tier": "1"}, Ports: []*resourcev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: 8080, NodePort: 30080, NodeAddress: "127.0.0.1"}, {Name: "dns", Port: 53, Protocol: "udp"},
			}},
			Placement: &resourcev1.ServicePlacement{Address: "10.78.128.7"},
		}},
	}
	got := serviceDescription(r, []*resourcev1.Resource{
		sandbox("both", "node1", map[string]string{"app": "web", "tier": "1", "more": "x"}),
		sandbox("one", "node2", map[string]string{"app": "web"}), sandbox("none", "node2", nil),
	})
	want := "Name: web Uid: 01ARZ3NDEKTSV4RRFFQ69G5FAV Address: 10.78.128.7 Selector: app=web,tier=1 " +
		"PORT NAME PROTOCOL TARGET NODE-PORT 80 http tcp 8080 127.0.0.1:30080 53 dns udp 53 - " +
		"SANDBOX NODE PHASE READY ADDRESS both node1 RUNNING true 10.77.0.2"
	if squeezed := strings.Join(strings.Fields(got), " "); squeezed != want {
		t.Errorf("got %s\nwant %s", squeezed, want)
	}
	if got := serviceDescription(r, nil); strings.Contains(got, "SANDBOX") {
		t.Errorf("without sandboxes: got %s", got)
	}
}
