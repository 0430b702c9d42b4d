package supervisor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"staddle.internal/kit/config"
	"staddle.internal/kit/run"

	"staddle.internal/services/supervisor/internal/containerd"
)

// ContainerdConfigMain writes the configuration of a managed containerd, as the
// supervisor does before it starts one, and returns the exit code: 0 when it is
// there, 2 if flags or node.yaml are wrong, 1 otherwise. It is a command that ends,
// for those who start containerd without a supervisor. Safe to repeat.
func ContainerdConfigMain() int {
	fs := flag.NewFlagSet("staddle-containerd-config", flag.ExitOnError)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	file := fs.String("config", "", "configuration file (default node.yaml in the folder of configuration)")
	_ = fs.Parse(os.Args[1:]) // ends the process itself
	if err := runContainerdConfig(*root, *file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run.ExitCode(err)
	}
	return run.ExitOK
}

func runContainerdConfig(root, file string) error {
	paths, err := config.At(root)
	if err != nil {
		return config.Wrong("--root", "%s", err)
	}
	if file == "" {
		file = paths.NodeFile()
	}
	node, err := config.LoadNode(file)
	if err != nil {
		return err
	}
	node.Resolve(paths)
	if !node.Containerd.Managed {
		return config.Wrong(file, "containerd.managed is false: the one at %s is not ours to configure", node.Containerd.Address)
	}
	return writeContainerdConfig(paths, node)
}

// writeContainerdConfig makes the folders and the file of a managed containerd,
// whose socket is for the user of sandboxhost.
func writeContainerdConfig(paths config.Paths, node *config.Node) error {
	user, _, err := node.Users.Of("sandboxhost")
	if err != nil {
		return fmt.Errorf("write configuration of containerd: %w", err)
	}
	cfg := containerd.Config{
		Root: paths.Var(config.ContainerdName), State: filepath.Join(paths.Run(), config.ContainerdName), Address: node.Containerd.Address,
		Shims: filepath.Join(paths.Run(), "shims"), UID: user.UID, GID: user.GID,
	}
	_, err = cfg.Write()
	return err
}
