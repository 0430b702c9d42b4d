package api

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/selector"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes keeps a page well below the 4 MiB of one message.
	maxPageBytes = 2 << 20
)

// pageToken says where the next page begins. It is opaque to callers, and no
// secret: it grants nothing.
type pageToken struct {
	Revision uint64      `json:"r"`
	After    string      `json:"a"`
	Kind     record.Kind `json:"k"`
	Selector string      `json:"s,omitempty"`
}

// ListResources reads one page from the store's history.
func (s *Resources) ListResources(ctx context.Context, req *coordinatorv1.ListResourcesRequest) (*coordinatorv1.ListResourcesResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.May(rights.Read, req.GetKind()); err != nil {
		return nil, err
	}
	want, err := selector.Parse(req.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	at, err := parseToken(req)
	if err != nil {
		return nil, err
	}
	p := &page{limit: pageSize(req.GetPageSize()), keep: func(r *record.Resource) bool { return c.Sees(r) && want.Matches(r.GetMeta().GetLabels()) }}
	more, err := s.fill(ctx, p, &at)
	if err != nil {
		return nil, err
	}
	resp := &coordinatorv1.ListResourcesResponse{Resources: p.records, Revision: at.Revision}
	if more {
		resp.NextPageToken, err = at.text()
	}
	return resp, err
}

// fill reads on until the page is full or there is no more, and moves at to the
// last record that was looked at.
func (s *Resources) fill(ctx context.Context, p *page, at *pageToken) (more bool, err error) {
	for {
		got, err := s.deps.Store().List(ctx, at.Kind, at.After, maxPage, at.Revision)
		if err != nil {
			return false, err
		}
		at.Revision = got.Revision
		for _, r := range got.Records {
			if p.keep(r) && !p.add(r) {
				return true, nil
			}
			at.After = r.GetMeta().GetName()
		}
		if !got.More {
			return false, nil
		}
	}
}

// page collects records up to its bounds.
type page struct {
	limit   int
	bytes   int
	keep    func(*record.Resource) bool
	records []*record.Resource
}

// add reports whether there was room.
func (p *page) add(r *record.Resource) bool {
	size := proto.Size(r)
	if len(p.records) == p.limit || len(p.records) > 0 && p.bytes+size > maxPageBytes {
		return false
	}
	p.records, p.bytes = append(p.records, r), p.bytes+size
	return true
}

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(min(asked, maxPage))
}

// parseToken reads a token of the same list; without one the list begins.
func parseToken(req *coordinatorv1.ListResourcesRequest) (pageToken, error) {
	at := pageToken{Kind: req.GetKind(), Selector: req.GetLabelSelector()}
	if req.GetPageToken() == "" {
		return at, nil
	}
	var got pageToken
	raw, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	if err != nil || got.Revision == 0 {
		return at, fault.New(fault.Invalid, "read page_token: it is none that was given out: begin without one")
	}
	if got.Kind != at.Kind || got.Selector != digest(at.Selector) {
		return at, fault.New(fault.Invalid, "read page_token: it belongs to another list: begin without one")
	}
	got.Selector = at.Selector
	return got, nil
}

func (t pageToken) text() (string, error) {
	t.Selector = digest(t.Selector)
	raw, err := json.Marshal(t)
	if err != nil {
		return "", fault.New(fault.Internal, "write page_token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}
