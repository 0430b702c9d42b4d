package containerd

import (
	"bytes"
	"os"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	apparmorhost "github.com/containerd/containerd/v2/pkg/apparmor"

	"staddle.internal/kit/logging"
)

// apparmorProfile is the name of the profile that we load.
const apparmorProfile = "staddle-default"

// Where a machine shows that it has AppArmor, as runc and containerd look for it.
const (
	apparmorFolder = "/sys/kernel/security/apparmor"
	apparmorOn     = "/sys/module/apparmor/parameters/enabled"
	apparmorParser = "/sbin/apparmor_parser"
)

// armor is what a machine has for AppArmor.
type armor struct {
	// kernel: it is on, and the folder of profiles is there.
	kernel bool
	// parser: what loads a profile is installed.
	parser bool
	// container: this process runs in a container, whose host has its own profiles.
	container bool
}

// lookForArmor finds out.
func lookForArmor() armor {
	_, folder := os.Stat(apparmorFolder)
	_, parser := os.Stat(apparmorParser)
	on, err := os.ReadFile(apparmorOn)
	return armor{
		kernel: folder == nil && err == nil && bytes.HasPrefix(on, []byte("Y")), parser: parser == nil,
		container: os.Getenv("container") != "",
	}
}

// lacking says in one sentence why workloads can have no profile, or nothing.
func (a armor) lacking() string {
	switch {
	case a.container:
		return "this node runs in a container, where no profile of AppArmor can be loaded"
	case !a.kernel:
		return "the kernel has no AppArmor, or it is off"
	case !a.parser:
		return "there is no " + apparmorParser + ": install the package apparmor and restart sandboxhost"
	}
	return ""
}

// loadAppArmor loads our profile where the machine has AppArmor, and returns why not
// where there is none. A machine that has it and does not let us load it runs workloads
// without: everything else confines them still.
func (e *Engine) loadAppArmor() string {
	lacking := lookForArmor().lacking()
	if lacking == "" && !apparmorhost.HostSupports() {
		lacking = "containerd finds no AppArmor on this machine"
	}
	if lacking != "" {
		e.log.Info("workloads have no apparmor profile", logging.Reason(lacking))
		return lacking
	}
	if err := apparmor.LoadDefaultProfile(apparmorProfile); err != nil {
		e.log.Warn("workloads have no apparmor profile", logging.Reason("it cannot be loaded"), logging.Err(err))
		return "the profile cannot be loaded: " + err.Error()
	}
	e.log.Info("workloads have an apparmor profile", logging.Component(apparmorProfile))
	return ""
}

// AppArmor says since when it is known whether workloads have a profile of AppArmor, and
// what is lacking if they have none. It is known once Open has returned.
func (e *Engine) AppArmor() (lacking string, since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.abilities.noAppArmor, e.abilities.at
}
