// Command storage runs the process storage of a node.
package main

import (
	"os"

	"staddle.internal/services/storage"
)

func main() { os.Exit(storage.Main()) }
