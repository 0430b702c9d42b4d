package command_test

import (
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const serviceDocument = `kind: Service
name: web
labels: {team: shop}
spec:
  selector: {app: web}
  affinity: 10m
  ports:
  - {name: http, port: 80, target_port: 8080, node_port: 30080}
  - {name: dns, protocol: udp, port: 53}
`

// A service is applied, shown, described, completed and deleted as records of other kinds
// are.
func TestService_OfTheCluster(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, serviceDocument), 0, "service web created")
	spec := c.record(resourcev1.Kind_KIND_SERVICE, "web").GetService().GetSpec()
	if spec.GetSelector()["app"] != "web" || spec.GetAffinity().AsDuration().String() != "10m0s" || len(spec.GetPorts()) != 2 || spec.GetPorts()[0].GetNodePort() != 30080 {
		t.Errorf("got %v, want what the document says", spec)
	}
	want(t, applyIn(c, serviceDocument), 0, "service web unchanged")
	printed := cli(t, c.flags("get", "service", "web", "-o", "yaml")...)
	want(t, printed, 0, "kind: Service", "target_port: 8080")
	want(t, applyIn(c, printed.out), 0, "service web unchanged")
	want(t, applyIn(c, strings.Replace(serviceDocument, "30080", "30081", 1)), 0, "service web changed")
	want(t, cli(t, c.flags("get", "services")...), 0, "http=80:8080@30081,dns=53/udp", "app=web", "10m0s")
	want(t, applyIn(c, twoDocuments), 0)
	want(t, cli(t, c.flags("describe", "service", "web")...), 0, "Selector:   app=web", "SANDBOX", "node1", "RUNNING")
	want(t, cli(t, c.flags("describe", "service", "web", "-o", "json")...), 0, `"kind": "Service"`)
	want(t, cli(t, c.flags("describe", "sandbox", "web")...), 0, "Desired:")
	want(t, cli(t, c.flags("describe", "disk", "data")...), 2, "staddle get disk data -o yaml")
	want(t, cli(t, c.flags("describe", "servce", "web")...), 2, "service web")
	want(t, cli(t, append([]string{"__complete"}, c.flags("describe", "service", "")...)...), 0, "web")
	want(t, cli(t, append([]string{"__complete"}, c.flags("delete", "service", "")...)...), 0, "web")
	want(t, cli(t, append([]string{"__complete"}, c.flags("get", "")...)...), 0, "service")
	want(t, applyIn(c, "kind: Service\nname: pool\nspec: {selector: {app: web}, headless: true, ports: [{port: 80}]}\n"), 0, "service pool created")
	want(t, cli(t, c.flags("get", "service", "pool")...), 0, "headless")
	want(t, applyIn(c, "kind: Service\nname: bad\nspec: {selector: {app: web}, headless: true, affinity: 1m, ports: [{port: 80}]}\n"), 2, "nothing stands before the sandboxes")
	want(t, cli(t, c.flags("delete", "service", "web")...), 0, "service web deleted")
	want(t, cli(t, c.flags("get", "service", "web")...), 3, "not")
}

// All that is wrong with the document of a service is told at once, each with its line.
func TestService_DocumentIsChecked(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, `kind: Service
name: web
spec:
  selector: {}
  affinity: 100ms
  address: nowhere
  ports:
  - {name: http, port: 0}
  - {name: http, port: 80, protocol: sctp}
`), 2, ":4: spec.selector", ":5: spec.affinity", ":6: spec.address", ":8: spec.ports[0].port", ":9: spec.ports[1].protocol", ":7: spec.ports: ports of a service must have different names")
	want(t, applyIn(c, "kind: Service\nname: web\n"), 2, "what the service should be")
	if c.creates != 0 {
		t.Errorf("%d records were made", c.creates)
	}
}
