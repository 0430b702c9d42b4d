package agent

import (
	"slices"
	"sync"

	"staddle.internal/kit/id"
)

// repairTurn is after how many urgent sandboxes one for repair has its turn all the same.
const repairTurn = 16

// lanes are the order of the queue: what somebody waits for comes before what is looked at
// without a cause. The queue keeps each sandbox in it once, and calls all but urge from
// under its own lock.
type lanes struct {
	mu     sync.Mutex // guards all below
	urged  map[id.Sandbox]bool
	urgent []id.Sandbox
	repair []id.Sandbox
	passed int // urgent ones since the last one for repair
}

func newLanes() *lanes { return &lanes{urged: make(map[id.Sandbox]bool)} }

// urge says that a sandbox which is about to be added is urgent.
func (l *lanes) urge(uid id.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.urged[uid] = true
}

// Push adds a sandbox.
func (l *lanes) Push(uid id.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.urged[uid] {
		l.urgent = append(l.urgent, uid)
	} else {
		l.repair = append(l.repair, uid)
	}
}

// Touch is told of one that is added again: it may have become urgent.
func (l *lanes) Touch(uid id.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.repair, uid); i >= 0 && l.urged[uid] {
		l.repair = slices.Delete(l.repair, i, i+1)
		l.urgent = append(l.urgent, uid)
	}
}

// Len is how many there are.
func (l *lanes) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.urgent) + len(l.repair)
}

// Pop takes the next one. There is one.
func (l *lanes) Pop() id.Sandbox {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := &l.urgent
	if len(l.urgent) == 0 || l.passed >= repairTurn && len(l.repair) > 0 {
		lane, l.passed = &l.repair, -1
	}
	l.passed++
	uid := (*lane)[0]
	*lane = (*lane)[1:]
	delete(l.urged, uid)
	return uid
}
