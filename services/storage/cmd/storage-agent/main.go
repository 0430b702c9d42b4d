// Command storage-agent runs the process storage-agent of a node.
package main

import (
	"os"

	"staddle.internal/services/storage"
)

func main() { os.Exit(storage.AgentMain()) }
