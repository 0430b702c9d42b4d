package drain

import (
	"fmt"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// Bucket and key of the journal.
const (
	bucket = "drain"
	key    = "admission"
)

// load returns what is kept; nil if nothing is.
func load(j *journal.Journal) (r *presencev1.AdmissionRecord, err error) {
	err = j.View(func(tx journal.Tx) error {
		kept, found, err := journal.GetProto[*presencev1.AdmissionRecord](tx, bucket, key)
		if found {
			r = kept
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return r, nil
}

// save keeps a record.
func save(j *journal.Journal, r *presencev1.AdmissionRecord) error {
	if j == nil {
		return fault.New(fault.Unavailable, "write journal: presence is starting, or it stops; ask again")
	}
	err := j.Update(func(tx journal.Tx) error { return journal.PutProto(tx, bucket, key, r) })
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}
