// Command supervisor starts and restarts the processes of a node.
package main

import (
	"os"

	"staddle.internal/services/supervisor"
)

func main() { os.Exit(supervisor.Main()) }
