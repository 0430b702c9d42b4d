package command

import (
	"errors"
	"strings"
)

var (
	errQuote  = errors.New("a quote is not closed")
	errEscape = errors.New(`a \ stands at the end`)
	errEmpty  = errors.New("there is nothing")
)

// orEmpty is err, or that nothing was given.
func orEmpty(err error) error {
	if err == nil {
		return errEmpty
	}
	return err
}

// splitWords splits a line into words as a shell does, and does nothing else of what a shell
// does: blanks part words; within single quotes everything is itself; \ takes the meaning from
// what follows it, within double quotes from " and \ alone.
func splitWords(line string) ([]string, error) {
	var all []string
	var word strings.Builder
	var quote rune
	begun, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteRune('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, begun = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, begun = r, true
		case strings.ContainsRune(" \t\n", r):
			if begun {
				all = append(all, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	switch {
	case quote != 0:
		return nil, errQuote
	case escaped:
		return nil, errEscape
	case begun:
		all = append(all, word.String())
	}
	return all, nil
}
