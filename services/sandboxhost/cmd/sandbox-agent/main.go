// Command sandbox-agent runs the process of that name.
package main

import (
	"os"

	"staddle.internal/services/sandboxhost"
)

func main() { os.Exit(sandboxhost.AgentMain()) }
