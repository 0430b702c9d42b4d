package mirror

import (
	"sort"

	"google.golang.org/protobuf/proto"

	"staddle.internal/services/coordinator/internal/record"
)

// Event is one change of one record.
type Event struct {
	// Revision of the change.
	Revision uint64
	// Position is from where a reader resumes that has seen this event: its
	// revision, or the one before while more events of the same revision follow.
	Position uint64
	// Record as it is now; nil when it is gone.
	Record *record.Resource
	// Before is the record as it was; nil when it is new.
	Before *record.Resource
}

// history is the last part of all changes, in their order. Events are numbered
// from the first ever, so that a reader's place is one number.
type history struct {
	epoch  uint64 // raised when it begins anew
	floor  uint64 // every change after this revision is kept
	first  uint64 // number of events[0]
	events []Event
	bytes  int
}

func (h *history) restart(revision uint64) {
	*h = history{epoch: h.epoch + 1, floor: revision, first: h.end()}
}

// end is the number that the next event gets.
func (h *history) end() uint64 { return h.first + uint64(len(h.events)) }

func (h *history) add(e Event) {
	e.Position = e.Revision - 1
	h.events = append(h.events, e)
	h.bytes += size(e)
}

// seal says that the events of a revision are complete.
func (h *history) seal(revision uint64) {
	if n := len(h.events); n > 0 && h.events[n-1].Revision == revision {
		h.events[n-1].Position = revision
	}
}

// trim drops the oldest until both bounds hold, and a quarter more, so that the
// copying is paid once per many events.
func (h *history) trim(maxEvents, maxBytes int) {
	if len(h.events) <= maxEvents && h.bytes <= maxBytes {
		return
	}
	drop := 0
	for drop < len(h.events) && (len(h.events)-drop > maxEvents*3/4 || h.bytes > maxBytes*3/4) {
		h.bytes -= size(h.events[drop])
		h.floor = h.events[drop].Revision
		drop++
	}
	h.first += uint64(drop)
	h.events = append([]Event(nil), h.events[drop:]...)
}

// after is the number of the first event after a revision.
func (h *history) after(revision uint64) uint64 {
	i := sort.Search(len(h.events), func(i int) bool { return h.events[i].Revision > revision })
	return h.first + uint64(i)
}

// size is what an event keeps in memory: its record, or the last state of one that is
// gone.
func size(e Event) int {
	if e.Record == nil {
		return proto.Size(e.Before) + 128
	}
	return proto.Size(e.Record) + 128
}
