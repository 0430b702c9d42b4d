package node

import (
	"regexp"
)

// lasted matches how long something has lasted in a reason, as in "connection
// refused for 1m12s".
var lasted = regexp.MustCompile(` for (\d+(\.\d+)?(h|ms|µs|ns|m|s))+`)

// stem is a reason without the part that changes while nothing changes.
func stem(reason string) string { return lasted.ReplaceAllString(reason, "") }
