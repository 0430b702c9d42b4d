// Command presence runs the process of that name.
package main

import (
	"os"

	"staddle.internal/services/presence"
)

func main() { os.Exit(presence.Main()) }
