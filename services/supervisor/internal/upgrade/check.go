package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"staddle.internal/kit/fault"
)

func described(programs []string) string {
	if len(programs) == 0 {
		return "restarting with the installed binaries"
	}
	return "new: " + strings.Join(programs, ", ")
}

// prepare stages the binaries, asks each program of a component whether it could
// start, and tries the supervisor's own.
func (u *Upgrader) prepare(ctx context.Context, from string) ([]string, error) {
	if from == "" {
		return nil, nil
	}
	programs, err := u.stage.fill(from)
	if err != nil {
		return nil, err
	}
	var wrong []error
	for _, c := range u.cfg.Plan.Components {
		command, _, err := u.command(c.Name, false)
		if err == nil {
			err = u.ask(ctx, c.Name, command)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("component %s: %w", c.Name, err))
		}
	}
	if slices.Contains(programs, u.cfg.Own) {
		if err := u.deps.Try(ctx, u.stage.staged(u.cfg.Own)); err != nil {
			wrong = append(wrong, fmt.Errorf("supervisor: %w", err))
		}
	}
	if len(wrong) > 0 {
		return nil, fault.New(fault.Invalid, "upgrade: %w", errors.Join(append(wrong, u.stage.drop())...))
	}
	return programs, nil
}

// ask runs a program with the arguments that make it check itself and end.
func (u *Upgrader) ask(ctx context.Context, name string, command []string) error {
	args := u.cfg.Check(name, command)
	if args == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + u.cfg.Bin}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := u.deps.Children.Ask(cmd); err != nil {
		const most = 2000
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out.Bytes()[:min(out.Len(), most)])))
	}
	return nil
}
