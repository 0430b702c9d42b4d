// Command supervisor starts and restarts the processes of a node.
package main

import (
	"os"
	"runtime"

	"staddle.internal/services/supervisor"
)

// The main thread never runs anything else: children with a parent-death signal
// are made on a thread of their own, which must not be this one.
func init() { runtime.LockOSThread() }

func main() { os.Exit(supervisor.Main()) }
