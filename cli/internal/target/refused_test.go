package target

import (
	"errors"
	"os/user"
	"strings"
	"testing"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

func TestRefused_HintsOnlyWhereTheCallerIsRefused(t *testing.T) {
	stranger := Refused("supervisor", "/run/s.sock", fault.New(fault.Denied, "uid 1001 has no role"))
	if fault.KindOf(stranger) != fault.Denied || !strings.Contains(stranger.Error(), "/run/s.sock") || !strings.Contains(exit.Hint(stranger), "sudo") {
		t.Errorf("got %v, try: %s", stranger, exit.Hint(stranger))
	}
	for _, err := range []error{
		nil, errors.New("x"), fault.New(fault.Unavailable, "x"),
		fault.WithReason(fault.New(fault.Denied, "host networks are not allowed"), "HOST_NETWORK"),
	} {
		if got := Refused("supervisor", "/run/s.sock", err); !errors.Is(got, err) || exit.Hint(got) != "" {
			t.Errorf("%v became %v, try: %s", err, got, exit.Hint(got))
		}
	}
}

func TestHowToBeLetIn_NamesThePerson(t *testing.T) {
	if got := howToBeLetIn(&user.User{Username: "ada"}, nil); !strings.HasSuffix(got, "staddle-admin ada") {
		t.Errorf("got %s", got)
	}
	if got := howToBeLetIn(nil, errors.New("x")); !strings.HasSuffix(got, "staddle-admin USER") {
		t.Errorf("got %s", got)
	}
}
