package cgroup

import (
	"bytes"
	"strconv"
	"strings"
)

// filesOf are the files of each controller, by whether the hierarchy is the unified one.
var filesOf = map[bool]map[string][]source{
	true: {
		"memory": {
			{"memory.current", func(raw []byte, r *Reading) { r.Memory = parsed(raw) }},
			{"memory.max", func(raw []byte, r *Reading) { r.MemoryLimit = parsed(raw) }},
			{"memory.stat", func(raw []byte, r *Reading) { r.WorkingSet = sum(raw, "inactive_file", "active_file") }},
			{"memory.events", func(raw []byte, r *Reading) { r.OOMKills = sum(raw, "oom_kill") }},
		},
		"pids": {{"pids.current", func(raw []byte, r *Reading) { r.PIDs = parsed(raw) }}},
		"io":   {{"io.stat", readIO2}},
	},
	false: {
		"memory": {
			{"memory.usage_in_bytes", func(raw []byte, r *Reading) { r.Memory = parsed(raw) }},
			{"memory.limit_in_bytes", func(raw []byte, r *Reading) { r.MemoryLimit = parsed(raw) }},
			{"memory.stat", func(raw []byte, r *Reading) { r.WorkingSet = sum(raw, "total_inactive_file", "total_active_file") }},
			{"memory.oom_control", func(raw []byte, r *Reading) { r.OOMKills = sum(raw, "oom_kill") }},
		},
		"pids":  {{"pids.current", func(raw []byte, r *Reading) { r.PIDs = parsed(raw) }}},
		"blkio": {{"blkio.throttle.io_service_bytes_recursive", readIO1}},
	},
}

func readCPU1(raw []byte, r *Reading) { r.CPU = parsed(raw) }

func readCPU2(raw []byte, r *Reading) {
	if n := sum(raw, "usage_usec"); n != nil {
		*n *= 1000
		r.CPU = n
	}
}

// parsed reads a file with one number. "max", the largest number of version 1, and what
// is no number are nil.
func parsed(raw []byte) *uint64 {
	n, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64)
	if err != nil || n >= unlimited {
		return nil
	}
	return &n
}

// sum adds up "name value" lines; nil if one of them is missing.
func sum(raw []byte, names ...string) *uint64 {
	var all uint64
	found := 0
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, name := range names {
			if key != name {
				continue
			}
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return nil
			}
			all += n
			found++
		}
	}
	if found != len(names) {
		return nil
	}
	return &all
}

// readIO2 reads lines such as "8:0 rbytes=1 wbytes=2 rios=3". A group that has not used
// any disk has none.
func readIO2(raw []byte, r *Reading) {
	var read, written uint64
	for text := range strings.FieldsSeq(string(raw)) {
		key, value, _ := strings.Cut(text, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case key == "rbytes":
			read += n
		case key == "wbytes":
			written += n
		}
	}
	r.IORead, r.IOWritten = &read, &written
}

// readIO1 reads lines such as "8:0 Read 1".
func readIO1(raw []byte, r *Reading) {
	var read, written uint64
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		n, err := strconv.ParseUint(fields[2], 10, 64)
		switch {
		case err != nil:
		case fields[1] == "Read":
			read += n
		case fields[1] == "Write":
			written += n
		}
	}
	r.IORead, r.IOWritten = &read, &written
}
