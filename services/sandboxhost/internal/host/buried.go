package host

import (
	"time"

	"staddle.internal/kit/id"
)

// Buried says whether a uid was removed and is not accepted again.
func (h *Host) Buried(uid id.Sandbox) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tombs[uid]
	return t != nil && time.Since(t.GetRemovedAt().AsTime()) < tombstoneLife
}
