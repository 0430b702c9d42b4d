package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"staddle.internal/kit/config"
	"staddle.internal/kit/process"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/machine"
	"staddle.internal/services/supervisor/internal/supervise"
	"staddle.internal/services/supervisor/internal/upgrade"
)

// programs of an installation besides those of its components.
var programs = []string{"staddle", "staddle-node", "staddle-init", "staddle-coordinator", config.ContainerdName, "containerd-shim-runc-v2", "runc"}

// upgraderOf puts the rolling restart together.
func upgraderOf(p *process.Process, plan machine.Plan, children *child.Runner, loop *supervise.Loop, next *replacement) (*upgrade.Upgrader, error) {
	bin, err := p.Paths.Bin()
	if err != nil {
		return nil, fmt.Errorf("find own folder: %w", err)
	}
	names := slices.Clone(programs)
	for _, c := range plan.Components {
		if own := "staddle-" + c.Name; !slices.Contains(names, own) {
			names = append(names, own)
		}
	}
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	cfg := upgrade.Config{Plan: plan, Bin: bin, Programs: names, Check: checkOf, Own: filepath.Base(own)}
	return upgrade.New(cfg, upgrade.Deps{Children: children, Graph: loop, Log: p.Log, Renew: next.Renew, Try: next.try}), nil
}

// checkOf is how a program is asked whether it could start: ours check their
// configuration, and containerd says its version.
func checkOf(component string, command []string) []string {
	if component == config.ContainerdName {
		return []string{command[0], "--version"}
	}
	if base := filepath.Base(command[0]); base != "staddle-node" && base != "staddle-"+component {
		return nil // a command from the configuration: nobody knows what it takes
	}
	return append(slices.Clone(command), "--check-config")
}
