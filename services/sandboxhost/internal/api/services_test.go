package api_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/services/sandboxhost/internal/api"
)

// addresses keeps no services: it tells the address of each wish.
type addresses struct{}

func (addresses) Ensure(w *sandboxhostv1.ServiceWish) (*sandboxhostv1.ServiceState, error) {
	return &sandboxhostv1.ServiceState{Wish: w}, nil
}

func (addresses) Remove(string, string) error { return nil }

func (addresses) List() ([]*sandboxhostv1.ServiceState, error) { return nil, nil }

// taker takes what is registered.
type taker struct{ server any }

func (r *taker) RegisterService(_ *grpc.ServiceDesc, server any) { r.server = server }

// The address is named beside the spec or in it; two that differ are refused.
func TestEnsureService_Address(t *testing.T) {
	var at taker
	api.RegisterServices(&at, addresses{})
	server, ok := at.server.(sandboxhostv1.ServiceHostServiceServer)
	if !ok {
		t.Fatalf("got %T registered", at.server)
	}
	const one, other = "10.78.0.1", "10.78.0.2"
	for _, tt := range []struct{ beside, inside, want string }{{"", "", ""}, {one, "", one}, {"", one, one}, {one, one, one}, {one, other, "refused"}} {
		resp, err := server.EnsureService(t.Context(), &sandboxhostv1.EnsureServiceRequest{
			Uid: id.New(), Name: "web", Generation: 1, Manager: "local", Address: tt.beside, Spec: &resourcev1.ServiceSpec{Address: tt.inside},
		})
		if tt.want == "refused" {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%+v: got %v, want Invalid", tt, err)
			}
		} else if got := resp.GetService().GetWish().GetAddress(); err != nil || got != tt.want {
			t.Errorf("%+v: got %q, %v", tt, got, err)
		}
	}
	if _, err := server.EnsureService(t.Context(), &sandboxhostv1.EnsureServiceRequest{
		Uid: id.New(), Name: "web", Generation: 1, Manager: "local", Address: one, Spec: &resourcev1.ServiceSpec{Headless: true},
	}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an address of a headless service: got %v, want Invalid", err)
	}
	for lost, want := range map[bool]error{false: fault.Denied, true: nil} {
		_, err := server.RemoveService(t.Context(), &sandboxhostv1.RemoveServiceRequest{Uid: id.New(), Manager: "cluster", Lost: lost})
		if !errors.Is(err, want) {
			t.Errorf("remove one of the cluster, lost %t: got %v, want %v", lost, err, want)
		}
	}
}
