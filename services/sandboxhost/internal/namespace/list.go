package namespace

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"staddle.internal/kit/id"
)

// List returns the sandboxes after which the folders in dir are named. Other
// entries are none of ours. A dir that does not exist has none.
func List(dir string) ([]id.Sandbox, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list folders of sandboxes: %w", err)
	}
	var found []id.Sandbox
	for _, e := range entries {
		uid, err := id.ParseSandbox(strings.ToUpper(e.Name()))
		if err != nil || !e.IsDir() || e.Name() != uid.Lower() {
			continue // not named after a sandbox
		}
		found = append(found, uid)
	}
	return found, nil
}
