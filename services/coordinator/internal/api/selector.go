package api

import (
	"strings"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// maxTerms bounds a selector; records have at most 64 labels.
const maxTerms = 64

// selector is what labels a record must have.
type selector map[string]string

// parseSelector reads "key=value,key2=value2". A value may be empty, a key not.
func parseSelector(text string) (selector, error) {
	if text == "" {
		return nil, nil
	}
	terms := strings.Split(text, ",")
	if len(terms) > maxTerms {
		return nil, fault.New(fault.Invalid, "read label_selector: it has %d terms, at most %d are allowed", len(terms), maxTerms)
	}
	s := selector{}
	for _, term := range terms {
		key, value, ok := strings.Cut(term, "=")
		if !ok || key == "" {
			return nil, fault.New(fault.Invalid, "read label_selector: %.80q is not key=value", term)
		}
		if before, twice := s[key]; twice && before != value {
			return nil, fault.New(fault.Invalid, "read label_selector: %.80q is asked to have two values", key)
		}
		s[key] = value
	}
	return s, nil
}

func (s selector) matches(r *record.Resource) bool {
	labels := r.GetMeta().GetLabels()
	for k, v := range s {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
