package target

import (
	"fmt"
	"strings"
)

// wrap says what was asked for when err happened. The other side may have said
// it already in the same words; then it is not said again.
func wrap(err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if strings.HasPrefix(err.Error(), what) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}
