package child

import (
	"os"
	"slices"
	"strings"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/logging"
)

// Spec is everything that a process of one component is started with.
type Spec struct {
	// Name of the component.
	Name string
	// Command is its program, an absolute path, and its arguments.
	Command []string
	// Env is added to what every child gets.
	Env map[string]string
	// UID and GID are its user. 0 is root, whose rights are not reduced.
	UID, GID int
	// Capabilities it has although it is not root, by name.
	Capabilities []string
	// Socket is where its listening socket is made for it. Empty means none.
	Socket string
	// Address says where its second listening socket is made for it, over TCP, as
	// host:port; it is asked at each start, and empty means nowhere. The child
	// finds the socket as <name>.tcp. Nil means that it has none.
	Address func() string
	// Makes is the socket that the program makes for itself. When it made it and it is
	// lost, the process is told lost. Empty means none that matters.
	Makes string
	// Foreign is a program that knows nothing of leash, passed sockets and fd
	// store, and whose own children must outlive it: it is signalled by its main
	// process only, is in no cgroup that is killed, and is asked to end by the
	// kernel when the supervisor dies.
	Foreign bool
}

// reduced reports whether the process gets no more rights than its capabilities.
func (s Spec) reduced() bool { return s.UID != 0 }

// user is as whom it runs.
func (s Spec) user() uint32 {
	if s.reduced() {
		return uint32(s.UID)
	}
	return uint32(os.Getuid())
}

// passedOn are the variables of our own environment that a child gets: where
// programs are, how to speak, how to reach the outside, and what is observed.
var passedOn = []string{
	"PATH", "LANG", "LC_ALL", "TZ", "TMPDIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"GODEBUG", "GOTRACEBACK", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GORACE", "GOCOVERDIR",
	logging.FormatVariable, boottime.EnvID,
}

// environment returns the exact environment of a child: the variables passed on
// from ours, those of the protocol, and those of its spec, which win.
func environment(own []string, protocol []string, extra map[string]string) []string {
	var env []string
	for _, entry := range own {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := extra[name]
		if !replaced && (slices.Contains(passedOn, name) || strings.HasPrefix(name, "OTEL_")) {
			env = append(env, entry)
		}
	}
	env = append(env, protocol...)
	for name, value := range extra {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}
