// Command clusteraccess runs the process of that name.
package main

import (
	"os"

	"staddle.internal/services/clusteraccess"
)

func main() { os.Exit(clusteraccess.Main()) }
