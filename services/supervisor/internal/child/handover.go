package child

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/logging"
)

// Handover is what a program leaves to the next one in the same process: the
// children, and the numbers of the files that stay open.
type Handover struct {
	// Children by component. One that has neither process nor sockets is left out.
	Children map[string]ChildHandover `json:"children"`
	// Owners of words to the fd store, by process id.
	Owners map[int]string `json:"owners"`
	// Notify is the socket of the fd store.
	Notify int `json:"notify"`
	// Stored are the files in the fd store.
	Stored []fdstore.Stored `json:"stored"`
}

// ChildHandover is one component's part of it. A number of 0 is no file.
type ChildHandover struct {
	// PID of its process, 0 if there is none.
	PID int `json:"pid"`
	// Ended is the end of its last process, of which the loop may not have heard.
	Ended *Exit `json:"ended,omitempty"`
	// Leash is our end of its leash.
	Leash int `json:"leash"`
	// Socket is its listening socket, and File the identity of its path.
	Socket int   `json:"socket"`
	File   inode `json:"file"`
	// TCP is its listening socket at Address.
	TCP     int    `json:"tcp"`
	Address string `json:"address"`
}

// of returns the part of one component, or nil.
func (h *Handover) of(name string) *ChildHandover {
	if h == nil {
		return nil
	}
	c, ok := h.Children[name]
	if !ok {
		return nil
	}
	return &c
}

// FDs lists the files that must stay open.
func (h *Handover) FDs() []int {
	fds := []int{h.Notify}
	for _, c := range h.Children {
		fds = append(fds, c.Leash, c.Socket, c.TCP)
	}
	for _, s := range h.Stored {
		fds = append(fds, s.FD)
	}
	return fds
}

// HandOver has replace called while nothing changes: no child is made or reaped,
// and no file on its way to the fd store. replace does not return where it
// succeeds. The caller sees to it that Start, Terminate and Kill are not called
// meanwhile.
func (r *Runner) HandOver(replace func(Handover) error) (err error) {
	defer r.store.Freeze()()
	r.mu.Lock()
	defer r.mu.Unlock()
	var files copies
	defer func() { err = errors.Join(err, files.close()) }()
	h := Handover{Children: map[string]ChildHandover{}, Owners: maps.Clone(r.owners), Stored: r.store.All()}
	notify, err := r.store.SocketFile()
	if err != nil {
		return err
	}
	h.Notify = files.add(notify)
	for name, c := range r.children {
		part, err := c.handOver(&files)
		if err != nil {
			return fmt.Errorf("hand over component %s: %w", name, err)
		}
		h.Children[name] = part
	}
	return replace(h)
}

// copies are files that are open for the next program.
type copies struct {
	files []*os.File
	err   error
}

// add returns the number of a copy, which it closes in the end; 0 for none.
func (c *copies) add(f *os.File) int {
	if f == nil {
		return 0
	}
	c.files = append(c.files, f)
	return c.number(f)
}

// number is that of a file which stays its owner's.
func (c *copies) number(f *os.File) int {
	if f == nil {
		return 0
	}
	n, err := withFDs([]*os.File{f}, nil, func(fds []uintptr) (int, error) { return int(fds[0]), nil })
	c.err = errors.Join(c.err, err)
	return n
}

func (c *copies) close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (c *child) handOver(files *copies) (ChildHandover, error) {
	part := ChildHandover{PID: c.pid, Ended: c.ended, Leash: files.number(c.leash)}
	if c.socket != nil {
		f, file, err := c.socket.handOver()
		if err != nil {
			return part, err
		}
		part.Socket, part.File = files.add(f), file
	}
	if c.tcp != nil {
		f, err := c.tcp.copy()
		if err != nil {
			return part, err
		}
		part.TCP, part.Address = files.add(f), c.tcp.at
	}
	return part, files.err
}

// takeOver goes on with what the program before has left. A component that is in
// the graph no more is ended first.
func (r *Runner) takeOver(ctx context.Context, h *Handover) error {
	for _, s := range h.Stored {
		if err := r.store.Put(s.Owner, s.Name, s.FD); err != nil {
			r.deps.Log.Warn("stored file lost", logging.Component(s.Owner), logging.Err(err))
		}
	}
	var errs []error
	for name, part := range h.Children {
		r.mu.Lock()
		c := r.children[name]
		r.mu.Unlock()
		if c == nil {
			errs = append(errs, r.dismiss(ctx, name, part))
			continue
		}
		if err := r.takeOverChild(ctx, c, part); err != nil {
			errs = append(errs, fmt.Errorf("take over component %s: %w", name, err))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.owners, h.Owners)
	return errors.Join(errs...)
}

func (r *Runner) takeOverChild(ctx context.Context, c *child, part ChildHandover) error {
	if part.PID == 0 {
		if part.Ended != nil {
			r.wg.Go(func() { r.buried(*part.Ended, nil) }) // owned by Run: waits for the loop only
		}
		return nil
	}
	process, err := os.FindProcess(part.PID)
	if err != nil {
		return err
	}
	r.mu.Lock()
	c.pid, c.process = part.PID, process
	if part.Leash > 0 {
		c.leash = os.NewFile(uintptr(part.Leash), "leash")
	}
	r.mu.Unlock()
	stay := context.WithoutCancel(ctx)
	r.wg.Go(func() { r.reap(stay, c, part.PID) }) // owned by Run: ends with the child
	return nil
}

// dismiss ends a process that has no place in the graph any more, and closes what
// was kept for it.
func (r *Runner) dismiss(ctx context.Context, name string, part ChildHandover) error {
	r.deps.Log.Info("component dismissed", logging.Component(name), logging.Reason("it is in the graph no more"))
	var errs []error
	for _, fd := range []int{part.Leash, part.Socket, part.TCP} {
		if fd > 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	errs = append(errs, r.store.Forget(name))
	if part.PID == 0 {
		return errors.Join(errs...)
	}
	if err := unix.Kill(part.PID, unix.SIGTERM); err != nil {
		errs = append(errs, fmt.Errorf("end component %s: %w", name, err))
	}
	fd, err := unix.PidfdOpen(part.PID, 0)
	if err != nil {
		return errors.Join(append(errs, fault.New(fault.Unavailable, "end component %s: %w", name, err))...)
	}
	errs = append(errs, endFD(ctx, fd, r.cfg.LeftoverGrace), unix.Close(fd))
	if _, err := unix.Wait4(part.PID, nil, 0, nil); err != nil {
		errs = append(errs, fmt.Errorf("reap component %s: %w", name, err))
	}
	return errors.Join(append(errs, r.dropCgroup(ctx, name), removeNote(r.cfg.RunDir, name))...)
}

// dropCgroup ends what is left of a component that is in the graph no more.
func (r *Runner) dropCgroup(ctx context.Context, name string) error {
	g, err := makeCgroup(r.cfg.Cgroup, name)
	if err != nil {
		return err
	}
	return errors.Join(g.clear(ctx), g.remove())
}
