package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/target"
)

// Upgrade restarts all processes in their order with the binaries of a folder, or
// with the installed ones if it is empty, and shows each step. Interrupted, it goes
// on by itself.
func (m *Machine) Upgrade(ctx context.Context, folder string) (err error) {
	if folder != "" {
		if folder, err = filepath.Abs(folder); err != nil {
			return fmt.Errorf("resolve --binaries: %w", err)
		}
	}
	conn, err := target.Socket(ctx, supervisorName, m.Paths.Socket(supervisorName))
	if err != nil {
		return exit.Try(fmt.Errorf("upgrade: %w", err), "staddle up: it installs and starts what does not run")
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stream, err := supervisorv1.NewSupervisorServiceClient(conn).UpgradeRunner(ctx, &supervisorv1.UpgradeRunnerRequest{Folder: folder})
	if err != nil {
		return err
	}
	for installed := false; ; {
		step, err := stream.Recv()
		if errors.Is(err, io.EOF) || installed && fault.KindOf(err) == fault.Unavailable {
			return nil // the supervisor goes on in its new program, without this connection
		}
		if err != nil {
			return nextStep(err)
		}
		m.say("%s", sentence(step))
		installed = installed || step.GetStage() == supervisorv1.UpgradeStage_UPGRADE_STAGE_INSTALLED
	}
}

// nextStep adds to a failed upgrade what to do about it.
func nextStep(err error) error {
	switch fault.Reason(err) {
	case "PUT_BACK":
		return exit.Try(err, "staddle status, and the logs of that component, for what the new binary said")
	case "NOT_READY":
		return exit.Try(err, "staddle status: what it waits for")
	case "UPGRADE_RUNNING":
		return exit.Try(err, "staddle status --watch: follow that one")
	}
	return err
}

func sentence(r *supervisorv1.UpgradeRunnerResponse) string {
	text := map[supervisorv1.UpgradeStage]string{
		supervisorv1.UpgradeStage_UPGRADE_STAGE_CHECKED:      "checked",
		supervisorv1.UpgradeStage_UPGRADE_STAGE_RESTARTING:   "restarting",
		supervisorv1.UpgradeStage_UPGRADE_STAGE_READY:        "ready",
		supervisorv1.UpgradeStage_UPGRADE_STAGE_FAILED:       "not ready",
		supervisorv1.UpgradeStage_UPGRADE_STAGE_PUTTING_BACK: "putting the old binary back",
		supervisorv1.UpgradeStage_UPGRADE_STAGE_INSTALLED:    "all processes are ready; the new binaries are installed",
	}[r.GetStage()]
	if text == "" {
		text = r.GetStage().String() // of a later version
	}
	if r.GetComponent() != "" {
		text = r.GetComponent() + ": " + text
	}
	if r.GetMessage() != "" {
		text += ": " + r.GetMessage()
	}
	return text
}
