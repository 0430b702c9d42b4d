// Command coordinator is the process staddle-coordinator. It owns nothing but
// the way from the command line to package coordinator, and must never hold
// logic. In the trail it is the first line of the process.
package main

import (
	"os"

	"staddle.internal/services/coordinator"
)

func main() { os.Exit(coordinator.Main()) }
