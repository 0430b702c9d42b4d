package config

import (
	"os/user"
	"strconv"
	"strings"
	"testing"

	"staddle.internal/kit/fault"
)

func TestUsers_Of(t *testing.T) {
	tests := []struct {
		name    string
		users   Users
		process string
		want    Account
		ok      bool
		kind    fault.Kind
	}{
		{"all are one", Users{}, "storage", Account{}, false, 0},
		{"by number, the first", Users{FirstID: 700}, "clusteraccess", Account{700, 700}, true, 0},
		{"by number, the last", Users{FirstID: 700}, "coordinator", Account{706, 706}, true, 0},
		{"no user of its own", Users{FirstID: 700}, "supervisor", Account{}, false, 0},
		{"by name, no user of its own", Users{NamePrefix: "staddle-test-none-"}, "containerd", Account{}, false, 0},
		{"by name, and the machine has none", Users{NamePrefix: "staddle-no-such-"}, "storage", Account{}, false, fault.NotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok, err := tt.users.Of(tt.process)
			if got != tt.want || ok != tt.ok || (err != nil) != (tt.kind != 0) || err != nil && fault.KindOf(err) != tt.kind {
				t.Errorf("got %v, %v, %v; want %v, %v, kind %v", got, ok, err, tt.want, tt.ok, tt.kind)
			}
			if id, ok := tt.users.ID(tt.process); ok != tt.ok || id != tt.want.UID {
				t.Errorf("got id %d, %v; want %d, %v", id, ok, tt.want.UID, tt.ok)
			}
		})
	}
}

// A user that the machine has is found with its own group.
func TestLookup_FindsAUserWithItsGroup(t *testing.T) {
	want, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	got, err := lookup(want.Username)
	if err != nil || strconv.Itoa(got.UID) != want.Uid || strconv.Itoa(got.GID) != want.Gid {
		t.Errorf("got %v, %v; want %s and %s", got, err, want.Uid, want.Gid)
	}
}

func TestLoadNode_UsersAreGivenOneWay(t *testing.T) {
	if _, err := load(t, "version: 1\nusers: {name_prefix: staddle-}\n"); err != nil {
		t.Errorf("by name: %v", err)
	}
	for text, want := range map[string]string{
		"version: 1\nusers: {first_id: 700, name_prefix: staddle-}\n": "by number already",
		"version: 1\nusers: {name_prefix: Staddle}\n":                 "begins no user's name",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to say %q", text, err, want)
		}
	}
}
