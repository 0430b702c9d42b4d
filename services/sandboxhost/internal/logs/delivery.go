package logs

import (
	"errors"
	"fmt"
	"os"
)

// Delivery says what becomes of output while its disk takes none.
type Delivery byte

const (
	// Default waits for a disk that does not answer. On one that is full the stream's oldest
	// output goes, and then what comes is thrown away and counted.
	Default Delivery = 0
	// Blocking waits for a full disk as well, and gives up nothing of the stream for it.
	Blocking Delivery = 'b'
	// NonBlocking never waits: what a disk takes too slowly is thrown away and counted, and
	// on a full one it does as Default.
	NonBlocking Delivery = 'n'
)

// noteSuffix of the FIFO's path is where a stream that is not Default keeps two bytes beside it: its
// Delivery, and which of its buffers is filled, 0 or 1. Like the FIFO they go with the boot.
const noteSuffix = ".note"

const noteSize = 2

// noteOf reads the note beside a FIFO. One that is not there or not whole is that of Default.
func noteOf(fifo string) (d Delivery, filling int, err error) {
	raw, err := os.ReadFile(fifo + noteSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return Default, 0, nil
	}
	if err != nil || len(raw) != noteSize {
		return Default, 0, err
	}
	return Delivery(raw[0]), int(raw[1] & 1), nil
}

// makeNote writes the note of a stream that is about to be opened.
func makeNote(fifo string, d Delivery) error {
	if d == Default {
		return nil
	}
	if err := os.WriteFile(fifo+noteSuffix, []byte{byte(d), 0}, 0o600); err != nil {
		return fmt.Errorf("note what becomes of output: %w", err)
	}
	return nil
}
