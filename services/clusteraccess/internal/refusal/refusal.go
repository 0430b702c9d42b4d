// Package refusal owns the list of identities that this node lets in no more although
// their certificates are valid, as its coordinator tells with each renewal of the
// session.
//
// The list is kept in a file, so that it counts while the coordinator is away and
// after a reboot. Where that file cannot be read, nobody knows who is refused, and
// that is said, until the coordinator tells it anew. It must never decide who is on
// the list. In the trail it is what the gateway asks about each caller.
package refusal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/wholefile"
)

// scheme begins every identity.
const scheme = "spiffe://"

// Config says where the list is kept.
type Config struct {
	// Path of the file. Its folder must exist before the first list comes.
	Path string
}

// List is the list. Its methods may be called from any goroutine.
type List struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex // guards all below, and the order of writes
	refused []string   // sorted
	unknown error      // why the list is not known; nil if it is
	unkept  bool       // the file does not say what the list does
	open    map[int]entry
	next    int
}

// entry is one call that ends when its caller is refused.
type entry struct {
	identity string
	end      func()
}

// Open reads the list of the life before. Without a file nobody is refused.
func Open(cfg Config, log *slog.Logger) *List {
	l := &List{cfg: cfg, log: log, open: map[int]entry{}}
	l.refused, l.unknown = read(cfg.Path)
	if l.unknown != nil {
		log.Error("refused identities not read", logging.Path(cfg.Path), logging.Err(l.unknown))
	}
	return l
}

func read(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := strings.Fields(string(raw))
	for _, identity := range all {
		if !strings.HasPrefix(identity, scheme) {
			return nil, fmt.Errorf("%.80q is no identity", identity)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Refuse puts a list in the place of the one before, and ends the calls of those that
// are new on it. It counts at once, also where it cannot be kept.
func (l *List) Refuse(identities []string) {
	identities = slices.Compact(slices.Sorted(slices.Values(identities)))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unknown == nil && !l.unkept && slices.Equal(identities, l.refused) {
		return
	}
	changed := !slices.Equal(identities, l.refused)
	l.refused, l.unknown = identities, nil
	if changed {
		l.log.Info("refused identities changed", logging.Count(len(identities)))
	}
	for _, e := range l.open {
		if _, refused := slices.BinarySearch(identities, e.identity); refused {
			e.end() // ends a context: it does not come back here
		}
	}
	err := write(l.cfg.Path, identities)
	if err != nil && !l.unkept {
		l.log.Warn("refused identities not kept", logging.Path(l.cfg.Path), logging.Err(err))
	}
	l.unkept = err != nil
}

// Enter says whether a call of an identity is let in: Denied with reason REFUSED if it is
// on the list, Unavailable while nobody knows the list. Else end is called if it comes
// on the list before leave was called; end must not wait.
func (l *List) Enter(identity string, end func()) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unknown != nil {
		return nil, fault.New(fault.Unavailable, "who is refused is not known until the coordinator is reached: read %s: %w", l.cfg.Path, l.unknown)
	}
	if _, refused := slices.BinarySearch(l.refused, identity); refused {
		return nil, Refused(identity)
	}
	id := l.next
	l.next++
	l.open[id] = entry{identity, end}
	return func() { l.leave(id) }, nil
}

// Refused is what a refused caller is told.
func Refused(identity string) error {
	return fault.WithReason(fault.New(fault.Denied, "%s is refused by the coordinator of this cluster", identity), "REFUSED")
}

func (l *List) leave(id int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, id)
}

// write replaces the file.
func write(path string, identities []string) error {
	return wholefile.Replace(path, 0o600, func(f *os.File) error {
		_, err := f.WriteString(strings.Join(append(slices.Clone(identities), ""), "\n"))
		return err
	})
}
