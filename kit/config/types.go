package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time, written "10s", "1m30s" or "250ms".
type Duration time.Duration

// Std returns the same length as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the form that UnmarshalText reads.
func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalText reads "10s" and refuses a number without unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || string(text) == "0" {
		return fmt.Errorf("%q is no duration; write a number with unit, like 250ms, 10s or 5m", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText returns the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Size is a number of bytes, written "512MiB" or "4096B".
type Size int64

// Bytes returns the number of bytes.
func (s Size) Bytes() int64 { return int64(s) }

// Units of a Size, largest first.
var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// UnmarshalText reads a whole number with one of the units B, KiB, MiB, GiB and
// TiB, and refuses what does not fit into 63 bits.
func (s *Size) UnmarshalText(text []byte) error {
	wrong := fmt.Errorf("%q is no size; write a whole number with unit, like 512MiB or 2GiB", text)
	for _, u := range units {
		digits, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			return wrong
		}
		*s = Size(n * u.bytes)
		return nil
	}
	return wrong
}

// MarshalText returns the form that UnmarshalText reads.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
