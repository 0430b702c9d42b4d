package image

import (
	"runtime"
	"runtime/debug"
)

// giveBack returns to the machine what the transfer of an image needed. The buffers,
// of a megabyte each, are kept by their library for the next transfer until two
// collections have passed; a host at rest collects every two minutes, and keeps for
// minutes what is as much as all else that it has.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory() // collects once more
}
