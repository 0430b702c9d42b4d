package host

import (
	"context"
	"slices"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/inventory"
)

const (
	// DefaultTidyPeriod is how often the host looks for what is left over. What two
	// looks in a row have found goes, so nothing stays for longer than twice that.
	DefaultTidyPeriod = 5 * time.Minute
	// tidyLimit bounds one look and what follows from it, as CheckHost is bounded.
	tidyLimit = time.Minute
)

// keepTidy removes what is left over on the node, until ctx ends. Adoption does so
// too, but nothing tells a host that goes on of what comes to be left later.
func (h *Host) keepTidy(ctx context.Context) {
	var seen []inventory.Difference
	for backoff.Wait(ctx, h.cfg.TidyPeriod) == nil {
		seen = h.tidy(ctx, seen)
	}
}

// tidy removes what was left over at the look before and still is, and returns what
// is left over now. A look that failed shows nothing: after it all is seen for the
// first time.
func (h *Host) tidy(ctx context.Context, before []inventory.Difference) []inventory.Difference {
	ctx, cancel := context.WithTimeout(ctx, tidyLimit)
	defer cancel()
	now, err := h.lookTwice(ctx)
	if err != nil {
		h.log().Warn("not looked for what is left over", logging.Err(err))
		return nil
	}
	left := slices.DeleteFunc(now.differences, func(d inventory.Difference) bool { return d.Missing })
	var findings []Finding
	for _, d := range inventory.Stayed(before, left) {
		findings = append(findings, Finding{Difference: d, SandboxName: now.stocks[d.UID].Name})
	}
	if len(findings) == 0 {
		return left
	}
	if err := h.mend(ctx, findings); err != nil {
		h.log().Warn("what is left over not removed", logging.Count(len(findings)), logging.Err(err))
		return left
	}
	for _, f := range findings {
		if f.Err != nil {
			h.log().Warn("what is left over not removed", f.UID.Attr(), logging.Component(f.Name), logging.Err(f.Err))
		}
	}
	return left
}
