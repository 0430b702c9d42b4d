// Command mkimage makes an OCI archive from one Go program.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"staddle.internal/e2e/image"
)

func main() {
	out := flag.String("o", "", "archive to write")
	name := flag.String("name", "", "full name of the image")
	dir := flag.String("build", "", "folder of the Go program to build")
	flag.Parse()
	if *out == "" || *name == "" || *dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *name, *dir); err != nil {
		fmt.Fprintf(os.Stderr, "mkimage: %v\n", err)
		os.Exit(1)
	}
}

func run(out, name, dir string) (err error) {
	tmp, err := os.MkdirTemp("", "mkimage-")
	if err != nil {
		return err
	}
	defer func() {
		if cleanErr := os.RemoveAll(tmp); err == nil {
			err = cleanErr
		}
	}()
	program := filepath.Join(tmp, filepath.Base(dir))
	if err := image.Build(dir, program); err != nil {
		return err
	}
	img, err := image.FromProgram(program)
	if err != nil {
		return err
	}
	return image.WriteArchive(img, name, out)
}
