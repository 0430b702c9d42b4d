package sandboxhost

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/journal"
)

// A process whose notes cannot be read any more must end and start anew: it would
// refuse every wish and note no exit, for ever.
func TestKept_EndsWithItsNotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	k := &kept{options: journal.Options{Path: path, Kind: "test", Version: 1}}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.run(t.Context(), func() { close(ready) }) }()
	<-ready
	if err := k.Update(func(tx journal.Tx) error { return tx.Put("b", "k", []byte("v")) }); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := k.View(func(tx journal.Tx) error { tx.Get("b", "k"); return nil }); err == nil {
		t.Fatal("a file that is gone was read")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("it ended with %v, which does not name the file", err)
		}
	case <-ctx.Done():
		t.Error("it goes on without its notes")
	}
}
