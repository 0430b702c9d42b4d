package fdstore

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"staddle.internal/kit/fault"
)

// Bounds of one message.
const (
	maxMessage = 8 << 10
	maxFields  = 64
	maxStatus  = 1 << 10
)

// Message is what a process said about itself.
type Message struct {
	// Owner is whose process it is, as the Manager was told.
	Owner string
	// PID and UID are the sender's, from the kernel.
	PID int
	UID uint32
	// Ready and Stopping are the states READY=1 and STOPPING=1.
	Ready, Stopping bool
	// Status is the sentence of STATUS=, cut to 1,024 bytes; HasStatus tells an
	// empty one from none.
	Status    string
	HasStatus bool
}

// order is what a message asks the Manager to do.
type order struct {
	Message
	store, remove, barrier bool
	name                   string
}

// tells reports whether there is anything for people or the boot graph in it.
func (o order) tells() bool { return o.Ready || o.Stopping || o.HasStatus }

// parse reads one message. Unknown fields are left out, as the protocol wants; a
// wrong or contradictory one is fault.Invalid.
func parse(text string) (order, error) {
	var o order
	o.name = namelessFD
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > maxFields {
		return o, fault.New(fault.Invalid, "read message: has %d fields of at most %d", len(lines), maxFields)
	}
	for _, line := range lines {
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return o, fault.New(fault.Invalid, "read message: line %.40q has no =", line)
		}
		if err := o.field(key, value); err != nil {
			return o, err
		}
	}
	if o.store && o.remove || o.barrier && (o.store || o.remove || o.tells() || len(lines) > 1) {
		return o, fault.New(fault.Invalid, "read message: asks for two things at once")
	}
	return o, nil
}

func (o *order) field(key, value string) error {
	switch key {
	case "READY":
		o.Ready = value == "1"
	case "STOPPING":
		o.Stopping = value == "1"
	case "STATUS":
		o.Status, o.HasStatus = cut(strings.ToValidUTF8(value, "?")), true
	case "FDSTORE":
		o.store = value == "1"
	case "FDSTOREREMOVE":
		o.remove = value == "1"
	case "BARRIER":
		o.barrier = value == "1"
	case "FDNAME":
		if err := CheckName(value); err != nil {
			return fmt.Errorf("read message: %w", err)
		}
		o.name = value
	}
	return nil
}

// cut shortens s to the bound without breaking a character.
func cut(s string) string {
	if len(s) <= maxStatus {
		return s
	}
	s = s[:maxStatus]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
