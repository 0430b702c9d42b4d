// Command sandboxhost runs the process of that name.
package main

import (
	"os"
	"runtime"

	"staddle.internal/services/sandboxhost"
)

// The main thread never runs anything else: namespaces are made on threads that
// are thrown away, which the main thread cannot be.
func init() { runtime.LockOSThread() }

func main() { os.Exit(sandboxhost.Main()) }
