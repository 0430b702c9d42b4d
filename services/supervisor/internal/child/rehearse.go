package child

import (
	"context"
	"fmt"
	"maps"
	"os"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
)

// rehearse takes over what was left, as Run does, and leaves out all that anybody
// else would notice: no folder, cgroup, note or process is touched, and no end
// waited for, as the children are another process's.
func (r *Runner) rehearse(ctx context.Context, ready func()) (err error) {
	if r.boot, err = boottime.ID(); err != nil {
		return err
	}
	if r.own, err = ownCapabilities(); err != nil {
		return err
	}
	before := r.cfg.Before
	for _, s := range before.Stored {
		if err := r.store.Put(s.Owner, s.Name, s.FD); err != nil {
			return err
		}
	}
	for _, s := range r.cfg.Specs {
		c := &child{spec: s}
		if part := before.of(s.Name); part != nil {
			if err := c.rehearse(*part, r.cfg.SpareDirs); err != nil {
				return fmt.Errorf("take over component %s: %w", s.Name, err)
			}
		}
		r.mu.Lock()
		r.children[s.Name] = c
		r.mu.Unlock()
	}
	r.mu.Lock()
	maps.Copy(r.owners, before.Owners)
	r.mu.Unlock()
	return r.store.Run(ctx, ready)
}

func (c *child) rehearse(part ChildHandover, spares []string) (err error) {
	if part.Socket > 0 {
		c.socket = &socket{path: c.spec.Socket, spares: spares, uid: c.spec.UID, gid: c.spec.GID}
		if err := c.socket.begin(&part); err != nil {
			return err
		}
	}
	if part.TCP > 0 {
		c.tcp = &tcp{address: c.spec.Address}
		if err := c.tcp.begin(&part); err != nil {
			return err
		}
	}
	if part.Leash > 0 {
		c.leash = os.NewFile(uintptr(part.Leash), "leash")
	}
	if part.PID > 0 {
		if c.process, err = os.FindProcess(part.PID); err != nil {
			return err
		}
		c.pid = part.PID
	}
	return nil
}

// untried refuses what a program that is only tried must not do.
func (r *Runner) untried(what, name string) error {
	if r.cfg.Trial {
		return fault.New(fault.Conflict, "%s component %s: this program is only tried", what, name)
	}
	return nil
}
