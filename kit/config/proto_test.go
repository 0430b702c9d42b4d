package config

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

func statuses(t *testing.T, text string) ([]*processv1.GetStatusResponse, *Error) {
	t.Helper()
	out, err := DecodeProtos("f.yaml", []byte(text), func() *processv1.GetStatusResponse { return new(processv1.GetStatusResponse) })
	if err == nil {
		return out, nil
	}
	wrong, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %T: %v", err, err)
	}
	return nil, wrong
}

func TestDecodeProtos_ManyDocuments(t *testing.T) {
	got, err := statuses(t, `
process: a
waiting_for: [x, y]
state: PROCESS_STATE_READY
since: "2026-01-02T15:04:05Z"
pid: 7
external: true
---
process: b
waitingFor: []
---
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].GetWaitingFor()[1] != "y" || got[0].GetState() != processv1.ProcessState_PROCESS_STATE_READY ||
		got[0].GetSince().AsTime().Year() != 2026 || got[0].GetPid() != 7 || !got[0].GetExternal() || got[1].GetProcess() != "b" {
		t.Errorf("got %v", got)
	}
}

func TestDecodeProtos_Wrong(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		line       int
		key        string
		says       []string
	}{
		{"misspelt", "process: a\nwaiting_fro: []\n", 2, "waiting_fro", []string{"unknown", `"waiting_for"`}},
		{"in the second document", "process: a\n---\nproces: b\n", 3, "proces", []string{`"process"`}},
		{"number for a text", "process: 7\n", 1, "process", []string{"the number 7", "a text", "quotes"}},
		{"text for a number", "pid: seven\n", 1, "pid", []string{"whole number"}},
		{"too large", "pid: 99999999999\n", 1, "pid", []string{"in range"}},
		{"unknown word", "state: GOOD\n", 1, "state", []string{"PROCESS_STATE_READY"}},
		{"bad time", "since: yesterday\n", 1, "since", []string{"2026-01-02T"}},
		{"doubled", "process: a\nprocess: b\n", 2, "process", []string{"line 1"}},
		{"both spellings", "waiting_for: [a]\nstarted_at: \"2026-01-02T15:04:05Z\"\nstartedAt: \"2026-01-02T15:04:05Z\"\n", 3, "startedAt", []string{"both"}},
		{"text for a list", "waiting_for: a\n", 1, "waiting_for", []string{"a list of a text"}},
		{"no value", "process:\n", 1, "process", []string{"missing"}},
		{"yes", "external: yes\n", 1, "external", []string{"true"}},
		{"empty", "", 1, "", []string{"empty"}},
		{"a list", "- a\n", 1, "", []string{"a group of keys"}},
		{"alias", "process: &a x\nreason: *a\n", 2, "reason", []string{"aliases"}},
		{"tab", "process: a\n\tpid: 1\n", 2, "", []string{"tab"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := statuses(t, tc.text)
			wants(t, err, tc.line, tc.key, tc.says...)
		})
	}
}

// outer is a message with nested ones: inner, list and one of a and b.
func outer(t *testing.T) func() *dynamicpb.Message {
	t.Helper()
	field := func(name string, number int32, list bool, oneof *int32) *descriptorpb.FieldDescriptorProto {
		label := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		if list {
			label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
		}
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Label: label.Enum(), OneofIndex: oneof,
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".kittest.Inner"),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("kittest/nested.proto"), Package: proto.String("kittest"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Inner"), Field: []*descriptorpb.FieldDescriptorProto{{
				Name: proto.String("image_name"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
				Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}}},
			{
				Name: proto.String("Outer"), OneofDecl: []*descriptorpb.OneofDescriptorProto{{Name: proto.String("kind")}},
				Field: []*descriptorpb.FieldDescriptorProto{
					field("inner", 1, false, nil), field("list", 2, true, nil), field("a", 3, false, proto.Int32(0)), field("b", 4, false, proto.Int32(0)),
				},
			},
		},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return func() *dynamicpb.Message { return dynamicpb.NewMessage(file.Messages().ByName("Outer")) }
}

func TestDecodeProtos_NestedMessages(t *testing.T) {
	fresh := outer(t)
	got, err := DecodeProtos("f", []byte("inner: {image_name: x}\nlist:\n  - imageName: y\n  - {}\na: {}\n"), fresh)
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(got[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"inner":{"imageName":"x"},"list":[{"imageName":"y"},{}],"a":{}}`; strings.ReplaceAll(string(text), " ", "") != want {
		t.Errorf("got %s", text)
	}
	_, err = DecodeProtos("f", []byte("inner: 3\nlist:\n  - imageName: y\n  - image_nam: z\na: {}\nb: {}\n"), fresh)
	wrong, ok := errors.AsType[*Error](err)
	if !ok || len(wrong.Problems) != 3 {
		t.Fatalf("got %v", err)
	}
	wants(t, wrong, 1, "inner", "the number 3", "group of keys")
	wants(t, wrong, 4, "list[1].image_nam", `"image_name"`)
	wants(t, wrong, 6, "b", "only one of a and b")
}
