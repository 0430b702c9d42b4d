// Package version says which build this is.
//
// It owns one string that the linker sets. It must never read files or ask the
// network: every process prints it in its first log line and answers with it in
// GetStatus, also when nothing else works.
package version

import "runtime/debug"

// Version is set at link time with
// -ldflags "-X staddle.internal/kit/version.Version=v1.2.3".
var Version = ""

// String returns the version of this binary: what the linker set, or "dev" with
// the commit it was built from where the toolchain recorded one.
func String() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	return develop(info.Settings)
}

// develop names an unreleased build by the settings the toolchain recorded.
func develop(settings []debug.BuildSetting) string {
	v := "dev"
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			v += "-" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += "-modified"
		}
	}
	return v
}
