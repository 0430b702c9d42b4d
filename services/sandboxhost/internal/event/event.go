// Package event keeps what happened to the sandboxes of this node, for people who ask
// why.
//
// A Store is a bounded list of events by their seq. One that happens again is not added
// but counted, and moves to the end. All are in memory, and in a file that each change is
// appended to, so that the death of the process loses none.
//
// It must never decide what is an event, and nothing may depend on one being kept. In the
// trail it stands beside internal/host, which tells it, and behind internal/api.
package event

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/logging"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Bounds of what is kept, as the contract says.
const (
	maxEvents     = 4096
	maxPerSandbox = 64
	maxMessage    = 1024
	maxReason     = 128
)

// FileName is the name of a store's file in the folder of data.
const FileName = "events"

// Store keeps events. Its methods may be called by many goroutines at once.
type Store struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu      sync.Mutex // guards all below
	seq     uint64     // the highest that was given out
	order   *list.List // of *sandboxhostv1.Event, by seq; none is changed once it is in
	same    map[identity]*list.Element
	each    map[string]int // how many are kept, by sandbox
	changed chan struct{}  // closed and made anew with each change
	file    *file          // nil while the store does not run
}

// identity is what makes events the same.
type identity struct {
	uid, container, reason, message string
	severity                        sandboxhostv1.EventSeverity
}

func identityOf(e *sandboxhostv1.Event) identity {
	return identity{e.GetUid(), e.GetContainer(), e.GetReason(), e.GetMessage(), e.GetSeverity()}
}

// New returns an empty store that reads and writes its file, in a folder that exists, only while it
// runs.
func New(path string, log *slog.Logger) *Store {
	return &Store{
		path: path, log: log, now: time.Now,
		order: list.New(), same: make(map[identity]*list.Element), each: make(map[string]int), changed: make(chan struct{}),
	}
}

// Run reads what was kept, says ready, and keeps the file until ctx ends. A file that
// cannot be read is begun anew: nothing depends on it.
func (s *Store) Run(ctx context.Context, ready func()) error {
	if err := s.open(); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.file.close()
	s.file = nil
	return errors.Join(context.Cause(ctx), err)
}

func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, f, err := openFile(s.path)
	if err != nil {
		return fmt.Errorf("open events: %w", err)
	}
	for _, e := range events {
		s.put(e)
	}
	s.file = f
	return nil
}

// Note adds events that happened, or counts them. Severity, reason and what they are about are
// set; seq and count are given here, and the times where there is none.
func (s *Store) Note(events ...*sandboxhostv1.Event) {
	if len(events) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	noted := make([]*sandboxhostv1.Event, len(events))
	for i, e := range events {
		noted[i] = s.count(e)
		s.put(noted[i])
	}
	s.write(noted)
	close(s.changed)
	s.changed = make(chan struct{})
}

// count is an event as it is kept now that it has happened once more.
func (s *Store) count(happened *sandboxhostv1.Event) *sandboxhostv1.Event {
	e := proto.CloneOf(happened)
	e.Reason, e.Message = clip(e.GetReason(), maxReason), clip(e.GetMessage(), maxMessage)
	now := s.now()
	if e.GetLastAt() == nil {
		e.LastAt = timestamppb.New(now)
	}
	e.FirstAt, e.Count = e.GetLastAt(), 1
	if before, ok := s.same[identityOf(e)]; ok {
		old := valueOf(before)
		e.FirstAt, e.Count = old.GetFirstAt(), old.GetCount()+1
	}
	// A file that was lost, or is one of yesterday, must not make those wait who know
	// a seq that is higher.
	e.Seq = max(s.seq+1, uint64(max(now.UnixMicro(), 0)))
	return e
}

// put makes an event the newest one, in the place of the same, and drops what is too much.
func (s *Store) put(e *sandboxhostv1.Event) {
	if before, ok := s.same[identityOf(e)]; ok {
		s.drop(before)
	}
	s.seq = max(s.seq, e.GetSeq())
	s.same[identityOf(e)] = s.order.PushBack(e)
	s.each[e.GetUid()]++
	if s.each[e.GetUid()] > maxPerSandbox {
		s.drop(s.oldestOf(e.GetUid()))
	}
	if s.order.Len() > maxEvents {
		s.drop(s.order.Front())
	}
}

func (s *Store) oldestOf(uid string) *list.Element {
	at := s.order.Front()
	for valueOf(at).GetUid() != uid {
		at = at.Next()
	}
	return at
}

func (s *Store) drop(at *list.Element) {
	e := valueOf(at)
	s.order.Remove(at)
	delete(s.same, identityOf(e))
	if s.each[e.GetUid()]--; s.each[e.GetUid()] == 0 {
		delete(s.each, e.GetUid())
	}
}

// write appends to the file. What cannot be written is kept in memory, and written with
// what comes later.
func (s *Store) write(noted []*sandboxhostv1.Event) {
	if s.file == nil {
		return
	}
	wasOwing := s.file.owing
	if err := s.file.add(noted, s.all); err != nil && !wasOwing {
		s.log.Warn("events not written", logging.Err(err))
	}
}

func (s *Store) all() []*sandboxhostv1.Event {
	all := make([]*sandboxhostv1.Event, 0, s.order.Len())
	for at := s.order.Front(); at != nil; at = at.Next() {
		all = append(all, valueOf(at))
	}
	return all
}

// After returns the events after a seq, of one sandbox or, with an empty uid, of all, by
// seq; at most the last limit, or all with 0. The channel is closed with the next change.
// The events must not be changed.
func (s *Store) After(seq uint64, uid string, limit int) ([]*sandboxhostv1.Event, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*sandboxhostv1.Event
	for at := s.order.Back(); at != nil && valueOf(at).GetSeq() > seq && (limit == 0 || len(found) < limit); at = at.Prev() {
		if e := valueOf(at); uid == "" || e.GetUid() == uid {
			found = append(found, e)
		}
	}
	slices.Reverse(found)
	return found, s.changed
}

func valueOf(at *list.Element) *sandboxhostv1.Event {
	return at.Value.(*sandboxhostv1.Event) //nolint:forcetypeassert // nothing else is put in
}

// clip keeps text within a number of bytes.
func clip(text string, most int) string {
	const more = "…"
	if len(text) > most {
		text = text[:most-len(more)]
		text = strings.ToValidUTF8(text, "") + more
	}
	return strings.ToValidUTF8(text, "?")
}
