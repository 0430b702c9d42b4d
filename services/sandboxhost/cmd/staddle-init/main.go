// Command staddle-init is the first process of a container that asks for one.
package main

import (
	"os"

	"staddle.internal/services/sandboxhost/internal/initproc"
)

func main() { os.Exit(initproc.Main()) }
