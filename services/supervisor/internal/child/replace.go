package child

import (
	"slices"

	"staddle.internal/kit/fault"
)

// Program returns the path and the arguments with which a component is started.
func (r *Runner) Program(name string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.children[name]
	if !ok {
		return nil, fault.New(fault.NotFound, "look up program of component %s: there is none of that name", name)
	}
	return slices.Clone(c.spec.Command), nil
}

// Replace sets the path of the program for the next start of a component. The
// process that runs is left alone, and the arguments stay.
func (r *Runner) Replace(name, path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.children[name]
	if !ok {
		return fault.New(fault.NotFound, "replace program of component %s: there is none of that name", name)
	}
	c.spec.Command = append([]string{path}, c.spec.Command[1:]...)
	return nil
}
