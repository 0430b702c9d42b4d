package command

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// A node that was lost is not shown as ready because it was when it was heard
// last.
func TestNodeCells_LostIsNotReady(t *testing.T) {
	now := time.Now()
	node := &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: "node1"}, Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{
		Placement: &resourcev1.NodePlacement{LostSince: timestamppb.New(now.Add(-7 * time.Second))},
		Status: &resourcev1.NodeStatus{Conditions: []*resourcev1.Condition{
			{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE},
		}},
	}}}
	got := nodeCells(now, node)[2:5]
	if want := []string{"false", "lost 7s ago", "false"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Nor is one that was ready before its session began, and has not said so since.
func TestNodeCells_ReadyBeforeItsSessionIsNotReady(t *testing.T) {
	node := &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: "node1"}, Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{
		Placement: &resourcev1.NodePlacement{SessionId: 7, StatusSeq: 3},
		Status: &resourcev1.NodeStatus{Seq: 3, Conditions: []*resourcev1.Condition{
			{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE},
		}},
	}}}
	got := nodeCells(time.Now(), node)[2:4]
	if want := []string{"unknown", "connected"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
