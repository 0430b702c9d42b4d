package child

import (
	"log/slog"
	"os"

	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/leash"
	"staddle.internal/kit/logging"
)

// inheritance is what is open for a child, until it has it.
type inheritance struct {
	files    []*os.File
	protocol []string // variables that name them
	cgroup   *os.File
	leash    *os.File // our end
}

// inherit opens everything that the next process of c gets.
func (r *Runner) inherit(c *child) (in *inheritance, err error) {
	in = &inheritance{}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return in, err
	}
	in.files = append(in.files, null)
	out, err := openOutput(r.cfg.LogDir, c.spec.Name)
	if err != nil {
		return in, err
	}
	in.files = append(in.files, out, out)
	if c.spec.Foreign {
		return in, nil
	}
	if err := in.passSockets(c, r.store, r.notifySocket(), r.deps.Log); err != nil {
		return in, err
	}
	if err := in.passLeash(); err != nil {
		return in, err
	}
	if c.cgroup.exists() {
		in.cgroup, err = c.cgroup.open()
	}
	return in, err
}

// passSockets adds the listening sockets and the stored files, in the protocol of
// fd stores.
func (in *inheritance) passSockets(c *child, store *fdstore.Manager, notify string, log *slog.Logger) error {
	var names []string
	if c.socket != nil {
		f, err := c.socket.passed()
		if err != nil {
			return err
		}
		in.files = append(in.files, f)
		names = append(names, c.spec.Name+".sock")
	}
	if c.tcp != nil {
		f, err := c.tcp.passed()
		if err != nil {
			log.Warn("socket not made", logging.Component(c.spec.Name), logging.Err(err))
		}
		if f != nil {
			in.files = append(in.files, f)
			names = append(names, c.spec.Name+".tcp")
		}
	}
	stored, err := store.Open(c.spec.Name)
	if err != nil {
		return err
	}
	for _, f := range stored {
		in.files = append(in.files, f)
		names = append(names, f.Name())
	}
	in.protocol = fdstore.Env(notify, names)
	return nil
}

func (in *inheritance) passLeash() error {
	parent, end, err := leash.New()
	if err != nil {
		return err
	}
	in.leash = parent
	in.protocol = append(in.protocol, leash.Env(len(in.files)))
	in.files = append(in.files, end)
	return nil
}

func (in *inheritance) takeLeash() *os.File {
	f := in.leash
	in.leash = nil
	return f
}

// close closes our copies. An error of that leaves nothing undone: nothing was
// written through them.
func (in *inheritance) close() {
	for _, f := range append(in.files, in.cgroup, in.leash) {
		if f != nil {
			_ = f.Close()
		}
	}
}
