package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/services/supervisor/internal/upgrade"
)

// upgrader restarts everything, with the binaries of a folder if one is named.
type upgrader interface {
	Upgrade(ctx context.Context, folder string, tell func(upgrade.Note) error) error
}

// UpgradeRunner passes each step on as it comes.
func (s *Server) UpgradeRunner(req *supervisorv1.UpgradeRunnerRequest, stream grpc.ServerStreamingServer[supervisorv1.UpgradeRunnerResponse]) error {
	return s.deps.Upgrades.Upgrade(stream.Context(), req.GetFolder(), func(n upgrade.Note) error {
		return stream.Send(&supervisorv1.UpgradeRunnerResponse{
			Stage: stages[n.Stage], Component: n.Component, Message: n.Text, At: timestamppb.New(n.At),
		})
	})
}

var stages = map[upgrade.Stage]supervisorv1.UpgradeStage{
	upgrade.Checked:     supervisorv1.UpgradeStage_UPGRADE_STAGE_CHECKED,
	upgrade.Restarting:  supervisorv1.UpgradeStage_UPGRADE_STAGE_RESTARTING,
	upgrade.Ready:       supervisorv1.UpgradeStage_UPGRADE_STAGE_READY,
	upgrade.Failed:      supervisorv1.UpgradeStage_UPGRADE_STAGE_FAILED,
	upgrade.PuttingBack: supervisorv1.UpgradeStage_UPGRADE_STAGE_PUTTING_BACK,
	upgrade.Installed:   supervisorv1.UpgradeStage_UPGRADE_STAGE_INSTALLED,
}
