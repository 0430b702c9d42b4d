package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
)

const (
	// settle is how long the keeper waits after it was told of a loss: whoever
	// removes a whole folder shall be done, or our names would be in its way.
	settle = 20 * time.Millisecond
	// placesPeriod is how often it looks although it was told of nothing: a look
	// costs forty system calls, and the kernel tells of every ordinary loss.
	placesPeriod = 30 * time.Second
)

// keepPlaces sees to it that the paths of all sockets lead to them, until ctx
// ends. The kernel tells it of losses.
func (r *Runner) keepPlaces(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		r.deps.Log.Warn("folders of sockets not watched", logging.Err(err))
		return
	}
	defer func() { _ = watcher.Close() }() // nothing was written
	tick := time.NewTicker(placesPeriod)
	defer tick.Stop()
	for {
		r.mendPlaces(watcher)
		if r.awaitLoss(ctx, watcher, tick.C) != nil {
			return // stopped
		}
	}
}

// awaitLoss returns when a place may have been lost.
func (r *Runner) awaitLoss(ctx context.Context, watcher *fsnotify.Watcher, tick <-chan time.Time) error {
	places := r.places()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
			return nil
		case err := <-watcher.Errors:
			r.deps.Log.Warn("events of folders lost", logging.Err(err))
			return nil
		case e := <-watcher.Events:
			if e.Op&(fsnotify.Remove|fsnotify.Rename|fsnotify.Create) == 0 || !slices.Contains(places, e.Name) {
				continue
			}
			r.noteMade(e)
		}
		timer := time.NewTimer(settle)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// places are the paths whose loss is mended: of sockets, and of their folders.
func (r *Runner) places() []string {
	places := r.folders()
	for _, c := range r.all() {
		if c.socket != nil {
			places = append(places, c.socket.path)
		}
	}
	return slices.Concat(places, r.followed(), r.made(), r.madeFolders())
}

// folders are those that are watched.
func (r *Runner) folders() []string {
	folders := []string{r.cfg.RunDir}
	for _, c := range r.all() {
		if c.socket != nil {
			folders = append(folders, filepath.Dir(c.socket.path))
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// followed are the sockets that this process itself serves.
func (r *Runner) followed() []string {
	return append([]string{r.notifySocket()}, r.cfg.OwnSockets...)
}

// all returns the children.
func (r *Runner) all() []*child {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*child
	for _, s := range r.cfg.Specs {
		if c, ok := r.children[s.Name]; ok {
			all = append(all, c)
		}
	}
	return all
}

// mendPlaces puts back what is lost. Folders come first, and are watched before
// the sockets are looked at, so that no loss falls between the two.
func (r *Runner) mendPlaces(watcher *fsnotify.Watcher) {
	var errs []error
	lost := r.foldersLost()
	if lost || r.sparesLost() {
		errs = append(errs, r.makeFolders(), r.noteAll())
	}
	for _, dir := range append(r.folders(), r.madeFolders()...) {
		errs = append(errs, watcher.Add(dir))
	}
	for _, path := range r.followed() {
		errs = append(errs, r.follow(path))
	}
	for _, c := range r.all() {
		if c.socket != nil {
			errs = append(errs, r.mendSocket(c))
		}
		if c.spec.Makes != "" {
			errs = append(errs, r.mendMade(c))
		}
	}
	r.tellPlaces(lost, errors.Join(errs...))
}

// tellPlaces writes a line when the trouble changes.
func (r *Runner) tellPlaces(remade bool, err error) {
	if remade {
		r.deps.Log.Warn("folders remade", logging.Path(r.cfg.RunDir))
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.trouble {
		r.deps.Log.Warn("sockets not in place", logging.Err(err))
	}
	r.trouble = text
}

func (r *Runner) foldersLost() bool { return slices.ContainsFunc(r.folders(), missing) }

func (r *Runner) sparesLost() bool { return slices.ContainsFunc(r.cfg.SpareDirs, missing) }

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// mendSocket has a process started again only where the socket that it serves
// cannot be reached any more.
func (r *Runner) mendSocket(c *child) error {
	before := c.socket.inPlace()
	anew, err := c.socket.mend()
	if err != nil {
		return fmt.Errorf("component %s: %w", c.spec.Name, err)
	}
	if !before {
		r.deps.Log.Warn("socket put back", logging.Component(c.spec.Name), logging.Path(c.socket.path))
	}
	r.mu.Lock()
	pid := c.pid
	r.mu.Unlock()
	if anew && pid != 0 {
		r.deps.Lost(c.spec.Name, pid, "its socket "+c.socket.path+" was lost with its second name, and made anew")
	}
	return nil
}

// follow keeps a second name of a socket that this process serves, and brings the
// first back. A socket that its server made anew is followed to its new file.
func (r *Runner) follow(path string) error {
	for _, dir := range r.cfg.SpareDirs {
		spare := filepath.Join(dir, filepath.Base(path))
		if rpc.SameSocket(path, spare) {
			return nil
		}
		if missing(path) {
			if err := rpc.Relink(path, spare); !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		if rpc.Spare(path, spare) == nil {
			return nil
		}
	}
	return nil
}

// dropSpares removes all second names.
func (r *Runner) dropSpares() error {
	var errs []error
	for _, dir := range r.cfg.SpareDirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// noteAll writes the notes of all processes anew.
func (r *Runner) noteAll() error {
	var errs []error
	for _, c := range r.all() {
		r.mu.Lock()
		pid := c.pid
		r.mu.Unlock()
		if pid != 0 {
			errs = append(errs, writeNote(r.cfg.RunDir, c.spec.Name, r.boot, pid))
		}
	}
	return errors.Join(errs...)
}
