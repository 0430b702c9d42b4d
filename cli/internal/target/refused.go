package target

import (
	"fmt"
	"os/user"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

// Refused says what to do when a process behind a socket does not take the caller
// for an operator. A refusal with a reason is about the request, and any other
// error about something else: they are returned as they are.
func Refused(process, path string, err error) error {
	if fault.KindOf(err) != fault.Denied || fault.Reason(err) != "" {
		return err
	}
	return exit.Try(fmt.Errorf("reach %s at %s: %w", process, path, err), "%s", howToBeLetIn(user.Current()))
}

// howToBeLetIn is the next step of somebody who is no operator of this node.
func howToBeLetIn(who *user.User, err error) string {
	name := "USER"
	if err == nil {
		name = who.Username
	}
	return "the same with sudo; or once, and log in again: sudo groupadd -f staddle-admin && sudo usermod -aG staddle-admin " + name
}
