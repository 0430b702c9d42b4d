package process

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow by less than Go's 100 % before it is collected: a
// node has many processes that live in a few megabytes, and the time to collect
// those is nothing.
const gcPercent = 40

// sparing sets it, unless the environment says something else.
func sparing() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
