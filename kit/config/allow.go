package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// maxAllowed bounds each list of what sandboxes may ask for.
const maxAllowed = 64

var (
	sysctlName     = regexp.MustCompile(`^[a-z0-9_-]+([.][a-z0-9_*-]+)+$`)
	capabilityWord = regexp.MustCompile(`^[A-Z][A-Z_]{1,39}$`)
)

// allowed checks the lists of what sandboxes may ask for.
func (c *checks) allowed(n *Node) {
	c.list("allow_host_paths", n.AllowHostPaths, cleanPath, "write an absolute path without . and .., like /srv/data; / allows everything")
	c.list("allow_devices", n.AllowDevices, deviceRule, "write a path below /dev, like /dev/fuse, or /dev/dri/ for all in it")
	c.list("allow_capabilities", n.AllowCapabilities, func(s string) bool {
		return capabilityWord.MatchString(s) && !strings.HasPrefix(s, "CAP_") && s != "ALL"
	}, "write a name without CAP_, like NET_ADMIN; allow_privileged allows all")
	c.list("allow_sysctls", n.AllowSysctls, func(s string) bool {
		return sysctlName.MatchString(s) && !strings.Contains(strings.TrimSuffix(s, "*"), "*")
	}, "write a name with dots, like net.ipv4.ip_forward, or one that ends with *")
}

func (c *checks) list(key string, all []string, ok func(string) bool, remedy string) {
	c.must(len(all) <= maxAllowed, key, fmt.Sprintf("%d entries are too many", len(all)), fmt.Sprintf("write at most %d", maxAllowed))
	for i, entry := range all {
		c.must(ok(entry), fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%q is not known", entry), remedy)
	}
}

func cleanPath(s string) bool { return filepath.IsAbs(s) && filepath.Clean(s) == s && len(s) <= 4096 }

func deviceRule(s string) bool {
	return strings.HasPrefix(s, "/dev/") && len(s) > len("/dev/") && filepath.Clean(s) == strings.TrimSuffix(s, "/")
}
