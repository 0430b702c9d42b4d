package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/dns"
	"staddle.internal/services/sandboxhost/internal/engine"
)

func TestRefused(t *testing.T) {
	tests := []struct {
		text   string
		kind   fault.Kind
		reason string
	}{
		{`rpc error: code = Unknown desc = failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "nope": executable file not found in $PATH`, fault.NotFound, "COMMAND_NOT_FOUND"},
		{`rpc error: code = Unknown desc = failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "/no/such": stat /no/such: no such file or directory`, fault.NotFound, "COMMAND_NOT_FOUND"},
		{`OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "/etc": permission denied`, fault.Invalid, "COMMAND_NOT_EXECUTABLE"},
		{`OCI runtime start failed: exec /bin/x: exec format error`, fault.Invalid, "COMMAND_NOT_EXECUTABLE"},
		{`OCI runtime create failed: container init was OOM-killed (memory limit too low?)`, fault.Invalid, "RUNTIME_REFUSED"},
		{`write /var/lib/x: no space left on device`, fault.Exhausted, "DISK_FULL"},
		{`rpc error: code = Unavailable desc = connection error: connection refused`, fault.Unavailable, ""},
		{`ttrpc: closed`, fault.Unavailable, ""},
	}
	for _, tt := range tests {
		err := refused("create container x", errors.New(tt.text))
		if !errors.Is(err, tt.kind) || fault.Reason(err) != tt.reason {
			t.Errorf("%s: got %v %q, want %v %q", tt.text, fault.KindOf(err), fault.Reason(err), tt.kind, tt.reason)
		}
	}
}

func TestReadNote(t *testing.T) {
	record := func(format uint32) containers.Container {
		kept, err := typeurl.MarshalAny(&sandboxhostv1.ContainerNote{Format: format, Attempt: 3})
		if err != nil {
			t.Fatal(err)
		}
		return containers.Container{Extensions: map[string]typeurl.Any{extensionNote: kept}}
	}
	if note, err := readNote(record(noteFormat)); err != nil || !proto.Equal(note, &sandboxhostv1.ContainerNote{Format: noteFormat, Attempt: 3}) {
		t.Errorf("got %v, %v", note, err)
	}
	for name, r := range map[string]containers.Container{"newer": record(noteFormat + 1), "none": {}, "format 0": record(0)} {
		if note, err := readNote(r); err == nil || note != nil {
			t.Errorf("%s: got %v, %v, want an error", name, note, err)
		}
	}
}

func TestSandboxOf(t *testing.T) {
	uid := id.NewSandbox()
	if got, ok := sandboxOf(uid.Lower() + "-web-3"); !ok || got != uid {
		t.Errorf("got %s, %t, want %s", got, ok, uid)
	}
	for _, other := range []string{"", "web", "web-1", "01-x-1"} {
		if got, ok := sandboxOf(other); ok {
			t.Errorf("%q: got %s", other, got)
		}
	}
}

func TestIsStopped(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (containerd-shim) S 1 7 7": false, "7 (containerd-shim) T 1 7 7": true, "7 (containerd-shim) t 1 7 7": true,
		"7 (a) T (b) R 1 7 7": false, "": false,
	} {
		if got := isStopped([]byte(stat)); got != want {
			t.Errorf("%q: got %t, want %t", stat, got, want)
		}
	}
}

func TestIsShim(t *testing.T) {
	ours := []string{"/opt/bin/containerd-shim-runc-v2", "-namespace", "staddle", "-id", "x", "-address", "/run/c.sock", ""}
	if !engine.IsShim(ours, "/run/c.sock", "staddle") {
		t.Error("ours is not recognised")
	}
	for _, args := range [][]string{nil, {""}, {"containerd-shim-runc-v2"}, {"other", "-namespace", "staddle", "-address", "/run/c.sock"}} {
		if engine.IsShim(args, "/run/c.sock", "staddle") {
			t.Errorf("%q is taken for ours", args)
		}
	}
	if engine.IsShim(ours, "/run/other.sock", "staddle") || engine.IsShim(ours, "/run/c.sock", "other") {
		t.Error("one of another containerd is taken for ours")
	}
}

func TestHints_LoseNothingAndWaitForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHints()
		go h.run(ctx)
		uids := []id.Sandbox{id.NewSandbox(), id.NewSandbox(), id.NewSandbox()}
		for range 1000 { // nobody reads yet
			for _, uid := range uids {
				h.one(uid)
			}
		}
		h.all()
		seen := map[id.Sandbox]bool{}
		for len(seen) < len(uids)+1 {
			seen[<-h.out] = true
		}
		h.one(uids[0])
		if got := <-h.out; got != uids[0] && !seen[got] {
			t.Errorf("got %s", got)
		}
		cancel()
		synctest.Wait()
	})
}

func TestHosts(t *testing.T) {
	more := []*resourcev1.HostEntry{{Address: "10.1.2.3", Names: []string{"db", "db.lan"}}, {Address: "2001:db8::1", Names: []string{"six"}}}
	got := string(hosts("web", []netip.Addr{netip.MustParseAddr("10.77.0.5"), netip.MustParseAddr("fd00::5")}, more))
	for _, line := range []string{"127.0.0.1\tlocalhost\n", "\n10.77.0.5\tweb\n", "\n10.1.2.3\tdb db.lan\n", "\n2001:db8::1\tsix\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("got %q, want the line %q in it", got, line)
		}
	}
}

// A file appears with its mode, whatever the mask of the process, and again in
// place of one that may not be written.
func TestWriteConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "files", "0")
	for _, f := range []*resourcev1.ConfigFile{
		{Mode: "0400", Content: &resourcev1.ConfigFile_Text{Text: "one"}}, {Content: &resourcev1.ConfigFile_Data{Data: []byte{0, 1}}}, {Mode: "666"},
	} {
		if err := writeConfig(path, f, specs.User{UID: 7, GID: 8}); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		raw, err := os.ReadFile(path)
		if err := errors.Join(err, unix.Stat(path, &st)); err != nil {
			t.Fatal(err)
		}
		mode, content := cmp.Or(f.GetMode(), "444"), f.GetText()+string(f.GetData())
		if got := fmt.Sprintf("%o", st.Mode&0o7777); got != strings.TrimPrefix(mode, "0") || string(raw) != content || st.Uid != 7 || st.Gid != 8 {
			t.Errorf("got %q with mode %s of %d:%d, want %q with %s of 7:8", raw, got, st.Uid, st.Gid, content, mode)
		}
	}
}

// DNS-2: sandboxes ask the resolver of the node, or its servers where it has none, and
// never a loopback.
func TestResolvFile_DNS2_NamesWhoAnswers(t *testing.T) {
	node := config.DefaultNode().Network
	host := dns.Host{
		Servers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:53")},
		Search:  []string{"lan", "corp.example"},
	}
	check := func(want string) {
		t.Helper()
		if got := string(resolvFile(node, host)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check("nameserver 10.77.0.1\nsearch sandbox.staddle.internal lan corp.example\n")
	host.Search = slices.Repeat([]string{"lan"}, 20)
	check("nameserver 10.77.0.1\nsearch sandbox.staddle.internal lan lan lan lan lan\n")
	host.Search = []string{strings.Repeat("x", 240) + ".example", "lan"}
	check("nameserver 10.77.0.1\nsearch sandbox.staddle.internal\n")
	node.DNS.Disable, host.Search = true, []string{"lan"}
	check("nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch lan\n")
	host = dns.Host{}
	check("")
}
