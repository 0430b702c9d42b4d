package process

import (
	"os"
	"runtime"
	"runtime/debug"
)

// gcPercent lets the heap grow by less than Go's 100 % before it is collected: a
// node has many processes that live in a few megabytes, and the time to collect
// those is nothing.
const gcPercent = 40

// sparing sets it, and how many processors are used at once if that is not 0, unless
// the environment says something else.
func sparing(processors int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if processors > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(processors, runtime.GOMAXPROCS(0)))
	}
}
