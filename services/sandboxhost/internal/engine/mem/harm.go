package mem

import "staddle.internal/kit/id"

// Unpin takes the pins of a sandbox away as somebody does who tidies mounts up. What
// runs keeps its namespaces. Nobody is told.
func (e *Engine) Unpin(uid id.Sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sandbox(uid).pinned = false
}
