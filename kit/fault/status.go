package fault

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// domain marks a status as made by us: grpc makes statuses of the same codes
// for reasons of its own, such as ResourceExhausted for a large message.
const domain = "staddle"

// maxMessage bounds the text that crosses the wire in a header.
const maxMessage = 8 << 10

var codeOf = map[Kind]codes.Code{
	Invalid:     codes.InvalidArgument,
	NotFound:    codes.NotFound,
	Exists:      codes.AlreadyExists,
	Conflict:    codes.FailedPrecondition,
	Exhausted:   codes.ResourceExhausted,
	Unavailable: codes.Unavailable,
	Denied:      codes.PermissionDenied,
	Internal:    codes.Internal,
}

var kindOf = invert(codeOf)

func invert(m map[Kind]codes.Code) map[codes.Code]Kind {
	inverse := make(map[codes.Code]Kind, len(m))
	for k, c := range m {
		inverse[c] = k
	}
	return inverse
}

// ByCode turns a function of kinds into one of codes, for libraries that know only
// those. OK is kind 0. A code is read as that of a process of ours; one that no kind
// has is read as FromStatus reads it.
func ByCode[T any](f func(Kind) T) func(codes.Code) T {
	return func(code codes.Code) T {
		kind, known := kindOf[code]
		if !known {
			kind = KindOf(FromStatus(status.Error(code, "")))
		}
		return f(kind)
	}
}

// ToStatus returns err as an error that grpc sends as it is. Kind, reason,
// details and message cross; errors of contexts become Canceled and
// DeadlineExceeded; a status made by somebody else keeps its code and details
// and is not marked as ours. It returns nil for nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	text := message(err)
	if _, classified := errors.AsType[Kind](err); !classified {
		switch st, foreign := status.FromError(err); {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, text)
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, text)
		case foreign:
			return st.Err()
		}
	}
	st := status.New(codeOf[KindOf(err)], text)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: domain, Reason: Reason(err)}}
	for _, d := range Details(err) {
		details = append(details, protoadapt.MessageV1Of(d))
	}
	full, failed := st.WithDetails(details...)
	if failed != nil {
		return status.Error(codes.Internal, text+": encode details: "+failed.Error())
	}
	return full.Err()
}

// FromStatus returns err, as grpc gave it, as an error with a kind. Errors that
// are no status, such as io.EOF, are returned as they are, nil as nil.
//
// A status that no process of ours made gets the kind that its code safely
// allows: Invalid, Unavailable and Denied. Its NotFound, ResourceExhausted and
// so on are Internal, because acting on them would take a failed question for
// an answer.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := sent(err)
	if !ok {
		return err
	}
	info, details := split(st)
	base := WithDetails(errors.New(st.Message()), details...)
	switch code := st.Code(); {
	case code == codes.Canceled:
		return &ended{base, context.Canceled}
	case code == codes.DeadlineExceeded:
		return &ended{base, context.DeadlineExceeded}
	case info == nil:
		return &fault{foreignKind(st), base}
	default:
		kind, known := kindOf[code]
		if !known {
			kind = Internal
		}
		return withReasonIfAny(&fault{kind, base}, info.GetReason())
	}
}

// Unanswered reports whether err, as grpc gave it, says that there was no server to
// answer, or that it went away before it did, and why, without the words of grpc. A
// server of ours that answers Unavailable has answered.
func Unanswered(err error) (why string, unanswered bool) {
	if err == nil {
		return "", false
	}
	st, ok := sent(err)
	if !ok || st.Code() != codes.Unavailable {
		return "", false
	}
	if info, _ := split(st); info != nil {
		return "", false
	}
	return noise.Replace(st.Message()), true
}

// noise is what grpc says around the cause.
var noise = strings.NewReplacer("connection error: ", "", "transport: ", "", "Error while dialing: ", "", "desc = ", "", `"`, "")

// sent is the status as the other side made it: when grpc gives up repeating a
// call, it wraps words of its own around it.
func sent(err error) (*status.Status, bool) {
	type carrier interface {
		error
		GRPCStatus() *status.Status
	}
	if c, ok := errors.AsType[carrier](err); ok && c.GRPCStatus() != nil {
		return c.GRPCStatus(), true
	}
	return status.FromError(err)
}

// ended is what the other side said about a context that ended.
type ended struct {
	error
	cause error
}

func (e *ended) Unwrap() []error { return []error{e.error, e.cause} }

// split takes our mark out of the details of a status. A detail of a type that
// is not linked into this process is left out.
func split(st *status.Status) (*errdetails.ErrorInfo, []proto.Message) {
	var info *errdetails.ErrorInfo
	var rest []proto.Message
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok && i.GetDomain() == domain {
			info = i
			continue
		}
		if m, ok := d.(proto.Message); ok {
			rest = append(rest, m)
		}
	}
	return info, rest
}

func foreignKind(st *status.Status) Kind {
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		return Invalid
	case codes.Unavailable:
		return Unavailable
	case codes.PermissionDenied, codes.Unauthenticated:
		return Denied
	case codes.ResourceExhausted:
		if strings.Contains(st.Message(), "message larger than max") {
			return Invalid // grpc's own limit on the size of a message
		}
	}
	return Internal
}

func withReasonIfAny(err error, reason string) error {
	if reason == "" {
		return err
	}
	return WithReason(err, reason)
}

// message is the text of err, bounded, and valid for a proto string.
func message(err error) string {
	text := err.Error()
	if len(text) > maxMessage {
		text = text[:maxMessage] + "… (cut)"
	}
	return strings.ToValidUTF8(text, "?")
}
