// Package words owns how people are told which rule of a contract they broke.
//
// The library says of a text that it does not match a pattern. Few can read one, so this
// package says the same in words. It must never decide what is right: patterns stand in the
// proto files. It is a package of its own so that the command line has the words without the
// rule engine of servers.
package words

import (
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
)

// patterns says what a text must be that matches. All patterns of our contracts are in it.
var patterns = map[string]string{
	`^/`:                              absolute,
	`^/[^\x00]*$`:                     absolute,
	`^/[^\x00]+$`:                     absolute + ", and not / itself",
	`^(/[^/\x00]+)+$`:                 absolute + ", without a slash at its end or two in a row, and not / itself",
	`^/dev(/[^/\x00]+)+$`:             "must be an absolute path below /dev",
	`^/[\x21-\x7e]*$`:                 "must be a path that begins with /, without spaces and letters beyond ASCII",
	`^[^/\x00]*$`:                     "must be a name without a slash",
	`^[^\x00]*$`:                      "must be without a zero byte",
	`^[^=\x00]+=[^\x00]*$`:            "must be NAME=VALUE, without a zero byte",
	`^[ -~\t]+$`:                      "must be printable letters of ASCII, spaces and tabs",
	`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`: "must be lower-case letters, digits and dashes, with a letter or digit at both ends",
	`^[a-z0-9_-]+([.][a-z0-9_-]+)+$`:  "must be a name with dots, like net.core.somaxconn",
	`^[0-9A-HJKMNP-TV-Z]{26}$`:        "must be a ULID: 26 digits and upper-case letters without I, L, O and U",
	`^0?[0-7]{3}$`:                    "must be three octal digits, like 0640",
	`^[01]?[0-7]{3}$`:                 "must be octal digits, like 0700 or 1777",
	`^[A-Za-z_][A-Za-z0-9_]*$`:        "must be letters, digits and underscores, with no digit at the beginning",
	`^[A-Za-z0-9_.-]+$`:               "must be letters, digits, dashes, dots and underscores",
	`^[A-Za-z0-9_.:-]*$`:              "must be letters, digits, dashes, dots, underscores and a colon",
	`^[A-Za-z0-9.:-]*$`:               "must be letters, digits, dashes, dots and colons",
	`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`:      "must be letters, digits, dashes, dots and underscores, with no dash or dot at the ends",
	`^([A-Za-z0-9_-]|[.][A-Za-z0-9_-])[A-Za-z0-9._-]*$`: "must be letters, digits, dashes, dots and underscores, with at most one dot at the beginning",
	`^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$`:       "must be letters, digits, dashes, dots, underscores and slashes, with a letter or digit at both ends",
	`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`:     "must be letters, digits, dashes, dots and underscores, with a letter or digit at both ends, or nothing",
	`^(SIG)?(ABRT|ALRM|BUS|CHLD|CONT|FPE|HUP|ILL|INT|IO|KILL|PIPE|PROF|PWR|QUIT|SEGV|STKFLT|SYS|TERM|TRAP|TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ|RTMIN([+]([1-9]|1[0-5]))?|RTMAX(-([1-9]|1[0-4]))?)$`: "must be the name of a signal, like SIGTERM or SIGRTMIN+3",
}

const absolute = "must be an absolute path"

// Of says which rule a field broke. The path of the field is not in it.
func Of(broken *validate.Violation) string {
	message := broken.GetMessage()
	if message == "" {
		message = broken.GetRuleId()
	}
	if _, pattern, ok := strings.Cut(message, "does not match regex pattern `"); ok {
		if said := patterns[strings.TrimSuffix(pattern, "`")]; said != "" {
			message = said
		}
	}
	return message
}
