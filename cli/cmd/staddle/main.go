// Command staddle is the command line of Staddle: it talks to the coordinator,
// or straight to the sockets of one node. It holds no logic; see
// internal/command.
package main

import (
	"os"

	"staddle.internal/cli/internal/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
