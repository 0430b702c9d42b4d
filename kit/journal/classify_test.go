package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"staddle.internal/kit/fault"
)

func TestClassify_NamesAFullDisk(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		err := fmt.Errorf("update: %w", classify(&os.PathError{Op: "write", Path: "x", Err: errno}))
		if !errors.Is(err, fault.Exhausted) || fault.Reason(err) != "DISK_FULL" || !errors.Is(err, errno) {
			t.Errorf("%v became %v, reason %q", errno, fault.KindOf(err), fault.Reason(err))
		}
	}
	if err := classify(io.ErrUnexpectedEOF); fault.KindOf(err) != fault.Internal {
		t.Errorf("another error became %v", fault.KindOf(err))
	}
}
