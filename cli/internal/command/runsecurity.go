package command

import (
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/exit"
)

// securityOptions are the flags of "run" about what the container may do.
type securityOptions struct {
	profile, seccomp, apparmor       string
	capAdd, capDrop, devices         []string
	readOnly, nonRoot, privilegedAll bool
}

func securityFlags(f *pflag.FlagSet, o *securityOptions) {
	f.StringVar(&o.profile, "security", "", "`PROFILE` of what it may do: default, or restricted (no capability, read-only root, no root user)")
	f.StringArrayVar(&o.capAdd, "cap-add", nil, "`CAPABILITY` beyond the profile, like NET_RAW")
	f.StringArrayVar(&o.capDrop, "cap-drop", nil, "`CAPABILITY` of the profile that it does not have, or ALL")
	f.BoolVar(&o.readOnly, "read-only", false, "make its root filesystem read-only")
	f.BoolVar(&o.nonRoot, "run-as-non-root", false, "refuse to run it as root, also when the image says so")
	f.StringArrayVar(&o.devices, "device", nil, "device of the node, as `/dev/PATH[:ro]`, if node.yaml allows it")
	f.StringVar(&o.seccomp, "seccomp", "", "`FILTER` of system calls: default, or unconfined if node.yaml allows it")
	f.StringVar(&o.apparmor, "apparmor", "", "AppArmor `PROFILE`: default, or unconfined if node.yaml allows it")
	f.BoolVar(&o.privilegedAll, "privileged", false, "let it do whatever root of the node can, if node.yaml allows it")
}

// add puts it into a spec; nothing if nothing was asked.
func (o securityOptions) add(_ *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	s := &resourcev1.SecuritySpec{
		AddCapabilities: capabilitiesOf(o.capAdd), DropCapabilities: capabilitiesOf(o.capDrop),
		ReadOnlyRoot: o.readOnly, RunAsNonRoot: o.nonRoot, Privileged: o.privilegedAll,
	}
	switch o.profile {
	case "", "default":
	case "restricted":
		s.Profile = resourcev1.SecurityProfile_SECURITY_PROFILE_RESTRICTED
	default:
		return exit.BadUsage("--security %q: write default or restricted", o.profile)
	}
	var err error
	if s.Seccomp, err = confinementOf("--seccomp", o.seccomp); err != nil {
		return err
	}
	if s.Apparmor, err = confinementOf("--apparmor", o.apparmor); err != nil {
		return err
	}
	for _, text := range o.devices {
		path, access, limited := strings.Cut(text, ":")
		if limited && access != "ro" || !strings.HasPrefix(path, "/dev/") {
			return exit.BadUsage("--device %q: write /dev/PATH or /dev/PATH:ro", text)
		}
		s.Devices = append(s.Devices, &resourcev1.DeviceAccess{Path: path, ReadOnly: limited})
	}
	if !proto.Equal(s, &resourcev1.SecuritySpec{}) {
		c.Security = s
	}
	return nil
}

// capabilitiesOf takes names as people write them: net_raw, CAP_NET_RAW.
func capabilitiesOf(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	}
	return all
}

func confinementOf(flag, word string) (resourcev1.Confinement, error) {
	switch word {
	case "", "default":
		return resourcev1.Confinement_CONFINEMENT_UNSPECIFIED, nil
	case "unconfined":
		return resourcev1.Confinement_CONFINEMENT_UNCONFINED, nil
	}
	return 0, exit.BadUsage("%s %q: write default or unconfined", flag, word)
}
