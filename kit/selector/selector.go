// Package selector owns how people say by labels which records they mean.
//
// It must never know what a record is. It stands outside the trail; the coordinator and
// the command line read selectors with it.
package selector

import (
	"strings"

	"staddle.internal/kit/fault"
)

// maxTerms bounds a selector; records have at most 64 labels.
const maxTerms = 64

// Selector is what labels a record must have. None selects all.
type Selector map[string]string

// Parse reads "key=value,key2=value2". A value may be empty, a key not; anything else
// is fault.Invalid.
func Parse(text string) (Selector, error) {
	if text == "" {
		return nil, nil
	}
	terms := strings.Split(text, ",")
	if len(terms) > maxTerms {
		return nil, fault.New(fault.Invalid, "read label_selector: it has %d terms, at most %d are allowed", len(terms), maxTerms)
	}
	s := Selector{}
	for _, term := range terms {
		key, value, ok := strings.Cut(term, "=")
		if !ok || key == "" || strings.HasSuffix(key, "!") {
			return nil, fault.New(fault.Invalid, "read label_selector: %.80q is not key=value", term)
		}
		if before, twice := s[key]; twice && before != value {
			return nil, fault.New(fault.Invalid, "read label_selector: %.80q is asked to have two values", key)
		}
		s[key] = value
	}
	return s, nil
}

// Matches says whether labels have all that is asked for.
func (s Selector) Matches(labels map[string]string) bool {
	for k, v := range s {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
