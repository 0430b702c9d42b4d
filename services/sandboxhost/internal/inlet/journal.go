package inlet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// journal says how far the last input of a container has come.
type journal struct {
	// ID of the input.
	ID string
	// Received is how many bytes of it were taken.
	Received uint64
	// Moving is true while all that is in our pipe is counted by Received; else nothing of it is.
	Moving bool
	// Ended is true once the container's input was ended for good.
	Ended bool
}

// idLength is that of an id, or of its absence.
const idLength = 26

// The bits of the last byte.
const bitMoving, bitEnded = 1, 2

// size is how long every journal is: one write replaces the whole, and the death of this process
// cuts no write of so few bytes.
const size = idLength + 8 + 1

func readJournal(path string) (journal, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return journal{}, nil
	}
	if err != nil {
		return journal{}, fmt.Errorf("read journal: %w", err)
	}
	if len(raw) == 0 { // made, and not written yet
		return journal{}, nil
	}
	if len(raw) != size {
		return journal{}, fmt.Errorf("read journal %s: it has %d bytes, want %d", path, len(raw), size)
	}
	j := journal{Received: binary.BigEndian.Uint64(raw[idLength:])}
	if raw[0] != 0 {
		j.ID = string(raw[:idLength])
	}
	j.Moving, j.Ended = raw[size-1]&bitMoving != 0, raw[size-1]&bitEnded != 0
	return j, nil
}

func (j journal) write(path string) error {
	var raw [size]byte
	copy(raw[:idLength], j.ID)
	binary.BigEndian.PutUint64(raw[idLength:], j.Received)
	if j.Moving {
		raw[size-1] |= bitMoving
	}
	if j.Ended {
		raw[size-1] |= bitEnded
	}
	f, err := os.OpenFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	_, err = f.WriteAt(raw[:], 0)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}
