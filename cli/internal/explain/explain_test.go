package explain

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/sandbox"
)

// reasonsOfTheHost are the reasons that a status can have, as the host's source has them.
func reasonsOfTheHost(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../services/sandboxhost/internal/host/reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") || len(spec.Values) != 1 {
			return true
		}
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, word)
		return true
	})
	if len(all) < 20 {
		t.Fatalf("only %v were found", all)
	}
	return all
}

func box(change func(*sandbox.Sandbox)) *sandbox.Sandbox {
	s := &sandbox.Sandbox{
		Name: "web", Node: "node1", Generation: 1,
		Spec: &resourcev1.SandboxSpec{
			Desired:    resourcev1.DesiredState_DESIRED_STATE_RUNNING,
			Containers: []*resourcev1.ContainerSpec{{Name: "prepare", Init: true}, {Name: "main"}},
		},
		Status: &resourcev1.SandboxStatus{ObservedGeneration: 1, Attempt: 1, Phase: running, PhaseAt: timestamppb.New(time.Unix(1e9, 0))},
	}
	change(s)
	return s
}

func TestOf_EveryReasonOfTheHostIsExplained(t *testing.T) {
	for _, reason := range reasonsOfTheHost(t) {
		t.Run(reason, func(t *testing.T) {
			e := Of(Facts{Sandbox: box(func(s *sandbox.Sandbox) {
				s.Status.Reason, s.Status.Message = reason, "the cause"
				s.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING
			})})
			if _, known := byReason[reason]; !known || e.Healthy || e.WaitsFor == "" && e.Next == "" {
				t.Errorf("got %+v, want it told what it waits for or what to do", e)
			}
			if len(e.Causes) == 0 || e.Causes[0].Reason != reason || e.Causes[0].Text != "the cause" {
				t.Errorf("the causes are %+v", e.Causes)
			}
			for _, word := range []string{"NAME", "NODE", "CONTAINER", "WHEN"} {
				if strings.Contains(" "+e.WaitsFor+" "+e.Next+" ", " "+word+" ") {
					t.Errorf("%s is left in %q, %q", word, e.WaitsFor, e.Next)
				}
			}
		})
	}
}

// What to do next goes by the fault behind the status, where it has one that is known.
func TestOf_GoesByTheFaultBehind(t *testing.T) {
	for reason, next := range map[string]string{
		"HOST_PATH_MISSING": "make on the node", "DEVICE_NOT_ALLOWED": "node.yaml", "NO_ADVICE_FOR_THIS": byReason["BACK_OFF"].next[:12],
	} {
		e := Of(Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Status.Phase, s.Status.Reason, s.Status.CauseReason = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING, "BACK_OFF", reason
		})})
		if !strings.HasPrefix(e.WaitsFor, "the end of its back-off") || !strings.Contains(e.Next, next) {
			t.Errorf("%s: got %+v, want what BACK_OFF waits for and next %q", reason, e, next)
		}
		if len(e.Causes) != 2 || e.Causes[1].Reason != reason {
			t.Errorf("%s: the causes are %+v", reason, e.Causes)
		}
	}
}

// Each reason that there is advice for is one that the node gives, and each that the guide has
// advice for has it here as well.
func TestNextOf_IsOfReasonsThatThereAre(t *testing.T) {
	var source strings.Builder
	err := fs.WalkDir(os.DirFS("../../../services/sandboxhost/internal"), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile("../../../services/sandboxhost/internal/" + path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for reason := range byCause {
		if !strings.Contains(source.String(), strconv.Quote(reason)) {
			t.Errorf("nothing gives the reason %s", reason)
		}
	}
	guide, err := os.ReadFile("../../../docs/guide/sandboxes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(guide), "| reason | what to do |")
	table, _, _ = strings.Cut(table, "\n\n")
	reasons := regexp.MustCompile("`([A-Z]+(_[A-Z]+)+)`").FindAllStringSubmatch(table, -1)
	if len(reasons) < 15 {
		t.Fatalf("the guide has only %v", reasons)
	}
	for _, reason := range reasons {
		if nextOf(reason[1]) == "" {
			t.Errorf("there is no advice for %s", reason[1])
		}
	}
}

func TestOf(t *testing.T) {
	lost := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Name: "node1"},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Placement: &resourcev1.NodePlacement{LostSince: timestamppb.Now()}}},
	}
	sick := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Name: "node1"},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Status: &resourcev1.NodeStatus{Conditions: []*resourcev1.Condition{
			{Type: "Storage", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "storage is away"},
			{Type: "DiskPressure", State: yes, Reason: "the disk is full"},
			{Type: "MemoryPressure", State: resourcev1.ConditionState_CONDITION_STATE_FALSE},
			{Type: "AppArmor", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "the kernel has none"},
			{Type: "Link", State: yes},
		}}}},
	}
	unready := []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_FALSE, Reason: "port 80 is not open"}}
	exit := &resourcev1.ContainerExit{Container: "main", Attempt: 1, Code: 3}
	tests := []struct {
		name                string
		facts               Facts
		healthy             bool
		state, causes, next string
	}{
		{"running", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Status.Conditions = []*resourcev1.Condition{{Type: "Ready", State: yes}}
		})}, true, "running and ready", "", ""},
		{"not ready", Facts{Sandbox: box(func(s *sandbox.Sandbox) { s.Status.Conditions = unready })},
			false, "running, not ready", "condition Ready: port 80 is not open", "staddle logs web --container main"},
		{"short of memory for its probe", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Status.Conditions = unready
			s.Status.Containers = []*resourcev1.ContainerStatus{{Name: "main", OomKills: 3, OomKillsBeside: 1}}
		})}, false, "running, not ready", "condition Ready: port 80 is not open; memory of container main: 3 processes were ended for using more memory than the limit; " +
			"1 of them was a probe, a pre-stop command or something executed", "staddle logs web --container main"},
		{"stopped as asked", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Spec.Desired, s.Status.Phase = resourcev1.DesiredState_DESIRED_STATE_STOPPED, stopped
		})}, true, "stopped", "", ""},
		{"done", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Spec.RestartPolicy, s.Status.Phase = resourcev1.RestartPolicy_RESTART_POLICY_NEVER, stopped
		})}, true, "stopped", "", ""},
		{"failed for good", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Spec.RestartPolicy, s.Status.Phase = resourcev1.RestartPolicy_RESTART_POLICY_NEVER, failed
			s.Status.Reason, s.Status.Exits = "CONTAINER_EXITED", []*resourcev1.ContainerExit{exit}
		})}, false, "failed", "attempt 1: ; container main in attempt 1: ended with code 3", "staddle logs web --container main --previous"},
		{"in a back-off", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Status.Phase, s.Status.Attempt, s.Status.Reason = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING, 2, "BACK_OFF"
			s.Status.NextAt, s.Status.Exits = timestamppb.Now(), []*resourcev1.ContainerExit{exit}
		})}, false, "waiting before attempt 2", "attempt 2: ; container main in attempt 1: ended with code 3", "--previous"},
		{"without a node", Facts{Sandbox: box(func(s *sandbox.Sandbox) {
			s.Node, s.Status, s.Waiting = "", &resourcev1.SandboxStatus{}, "no node has the labels"
		})}, false, "not placed on a node yet", "placement: no node has the labels", "staddle get node"},
		{"not heard of", Facts{Sandbox: box(func(s *sandbox.Sandbox) { s.Status = &resourcev1.SandboxStatus{} })},
			false, "placed on node node1", "", "staddle node status node1"},
		{"on a lost node", Facts{Sandbox: box(func(*sandbox.Sandbox) {}), Node: lost},
			false, "running", "node node1: the coordinator has lost it", "staddle node status node1"},
		{"on a sick node", Facts{Sandbox: box(func(s *sandbox.Sandbox) { s.Status.Conditions = unready }), Node: sick},
			false, "running, not ready", "node node1: condition Storage: storage is away; node node1: condition DiskPressure: the disk is full; condition Ready", "staddle logs"},
		{"with an old spec", Facts{Sandbox: box(func(s *sandbox.Sandbox) { s.Generation = 2 })},
			false, "running", "spec: its node has seen generation 1", "staddle node status node1"},
		{"in trouble", Facts{Sandbox: box(func(*sandbox.Sandbox) {}), Trouble: "the limits cannot be set"},
			false, "running", "trouble: the limits cannot be set", "mend"},
		{"being removed", Facts{Sandbox: box(func(s *sandbox.Sandbox) { s.Removing = true })}, false, "being removed", "", "doctor"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := Of(tt.facts)
			var causes []string
			for _, c := range e.Causes {
				causes = append(causes, c.What+": "+c.Text)
			}
			got := strings.Join(causes, "; ")
			if e.Healthy != tt.healthy || !strings.HasPrefix(e.State, tt.state) || !strings.HasPrefix(got, tt.causes) ||
				!strings.Contains(e.Next, tt.next) || tt.causes == "" && got != "" || e.Healthy && e.Next+e.WaitsFor != "" {
				t.Errorf("got %v, %q, %q, next %q; want %v, %q, %q, %q", e.Healthy, e.State, got, e.Next, tt.healthy, tt.state, tt.causes, tt.next)
			}
		})
	}
}
