package target

import (
	"os/user"
	"testing"
)

func TestBehindSudo_IsThePersonUnlessHomeWasChosen(t *testing.T) {
	users := map[string]*user.User{
		"0":    {Uid: "0", Gid: "0", HomeDir: "/root"},
		"1001": {Uid: "1001", Gid: "1002", HomeDir: "/home/ada"},
	}
	lookup := func(uid string) (*user.User, error) {
		if u, ok := users[uid]; ok {
			return u, nil
		}
		return nil, user.UnknownUserError(uid)
	}
	ada := Home{Dir: "/home/ada/.config", UID: 1001, GID: 1002}
	tests := []struct {
		name, uid, home string
		want            *Home
	}{
		{"no sudo", "", "/root", nil},
		{"sudo", "1001", "/root", &ada},
		{"sudo that keeps HOME", "1001", "/home/ada", &ada},
		{"sudo without HOME", "1001", "", &ada},
		{"sudo with a HOME of its own", "1001", "/tmp/test", nil},
		{"a user that is gone", "1003", "/root", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := behindSudo(func(name string) string { return map[string]string{"SUDO_UID": tt.uid, "HOME": tt.home}[name] }, lookup)
			if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
