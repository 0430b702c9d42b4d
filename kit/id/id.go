// Package id owns the identities of Staddle's things: how they are made, what
// text they have, and how names of host objects derive from them.
//
// An identity is a ULID as 26 characters of upper-case Crockford base 32. Each
// kind of thing has its own type, so that a disk cannot be passed for a sandbox,
// and each type spells its own log key. Names that people choose are DNS labels.
//
// It must never look anything up: an id says nothing about whether the thing
// exists. In the trail it is first used where a request enters, and last where
// an engine names a network interface.
package id

import (
	"crypto/rand"
	"log/slog"
	"strings"

	"github.com/oklog/ulid/v2"

	"staddle.internal/kit/fault"
)

// shortLength is how many characters Short keeps: with a prefix of up to four
// characters an interface name stays within the kernel's 15. They are 55 random
// bits of the ULID.
const shortLength = 11

// maxName is the length of a DNS label.
const maxName = 63

// Sandbox is the uid of one sandbox.
type Sandbox string

// Disk is the uid of one disk.
type Disk string

// Node is the uid of one node.
type Node string

// New returns a fresh ULID for a record that has no type of its own here.
func New() string {
	return ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// CheckUID returns nil if s is a ULID in the one spelling that Staddle uses, and
// fault.Invalid otherwise.
func CheckUID(s string) error {
	if len(s) != ulid.EncodedSize {
		return fault.New(fault.Invalid, "uid %s: has %d characters, write the 26 of a ULID", quote(s), len(s))
	}
	u, err := ulid.ParseStrict(s)
	if err != nil {
		return fault.New(fault.Invalid, "uid %s: %w", quote(s), err)
	}
	if u.String() != s {
		return fault.New(fault.Invalid, "uid %s: write it in upper case, as %s", quote(s), u)
	}
	return nil
}

// CheckName returns nil if s is a DNS label: 1 to 63 characters of a-z, 0-9 and
// "-", neither first nor last "-". Otherwise it returns fault.Invalid that names
// the field and says what to write.
func CheckName(field, s string) error {
	switch {
	case s == "":
		return fault.New(fault.Invalid, "%s: is empty, write 1 to 63 characters of a-z, 0-9 and -", field)
	case len(s) > maxName:
		return fault.New(fault.Invalid, "%s: %s has %d characters, write at most 63", field, quote(s), len(s))
	case s[0] == '-' || s[len(s)-1] == '-':
		return fault.New(fault.Invalid, "%s: %s begins or ends with -, write a letter or digit there", field, quote(s))
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fault.New(fault.Invalid, "%s: %s contains %q, write only a-z, 0-9 and -", field, quote(s), r)
		}
	}
	return nil
}

// NewSandbox returns a fresh uid.
func NewSandbox() Sandbox { return Sandbox(New()) }

// ParseSandbox returns s as a uid, or fault.Invalid.
func ParseSandbox(s string) (Sandbox, error) { return parse[Sandbox](s) }

// Attr is the log attribute "sandbox_id".
func (s Sandbox) Attr() slog.Attr { return slog.String("sandbox_id", string(s)) }

// Lower is the lower-case form, used in names of host objects.
func (s Sandbox) Lower() string { return strings.ToLower(string(s)) }

// Short is the end of Lower, for names of network interfaces.
func (s Sandbox) Short() string { return short(s.Lower()) }

// NewDisk returns a fresh uid.
func NewDisk() Disk { return Disk(New()) }

// ParseDisk returns s as a uid, or fault.Invalid.
func ParseDisk(s string) (Disk, error) { return parse[Disk](s) }

// Attr is the log attribute "disk_id".
func (d Disk) Attr() slog.Attr { return slog.String("disk_id", string(d)) }

// Lower is the lower-case form, used in names of host objects.
func (d Disk) Lower() string { return strings.ToLower(string(d)) }

// Short is the end of Lower, for names with little room.
func (d Disk) Short() string { return short(d.Lower()) }

// NewNode returns a fresh uid.
func NewNode() Node { return Node(New()) }

// ParseNode returns s as a uid, or fault.Invalid.
func ParseNode(s string) (Node, error) { return parse[Node](s) }

// Attr is the log attribute "node_id".
func (n Node) Attr() slog.Attr { return slog.String("node_id", string(n)) }

// Lower is the lower-case form, used in names of host objects.
func (n Node) Lower() string { return strings.ToLower(string(n)) }

// Short is the end of Lower, for names with little room.
func (n Node) Short() string { return short(n.Lower()) }

func parse[T ~string](s string) (T, error) {
	if err := CheckUID(s); err != nil {
		return "", err
	}
	return T(s), nil
}

func short(lower string) string {
	if len(lower) <= shortLength {
		return lower
	}
	return lower[len(lower)-shortLength:]
}

// quote shows text from outside without letting its length through.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return `"` + strings.ToValidUTF8(s, "?") + `"`
}
