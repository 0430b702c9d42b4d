package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
)

// example is one command of a document with what it shows of the result.
type example struct {
	where   string // document and line
	command string
	form    string // of the result: json, text, or "" where none is shown
	result  string
}

// block is a command block of a document, and the block of its result, if there is
// one.
var block = regexp.MustCompile("(?m)^```sh\n((?:[^`].*\n)+)```\n(?:\n?```(json|text)\n((?:[^`].*\n)+)```\n)?")

// examples are the commands of a document. A result is that of the last command
// above it.
func examples(t *testing.T, path string) []example {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	var all []example
	for _, m := range block.FindAllSubmatchIndex(raw, -1) {
		commands := strings.ReplaceAll(string(raw[m[2]:m[3]]), "\\\n", "")
		for line := range strings.Lines(commands) {
			all = append(all, example{
				where:   fmt.Sprintf("%s:%d", filepath.Base(path), 2+bytes.Count(raw[:m[0]], []byte("\n"))),
				command: strings.Join(strings.Fields(line), " "),
			})
		}
		if m[4] >= 0 {
			last := &all[len(all)-1]
			last.form, last.result = string(raw[m[4]:m[5]]), string(raw[m[6]:m[7]])
		}
	}
	return all
}

// words splits a command as a shell does, as far as documents need it.
func words(command string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(command, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}

const (
	sockets    = "../docs/guide/sockets.md"
	operations = "../docs/guide/operations.md"
)

// What the guide says of the sockets is run as it stands there, on a real machine,
// and gives what it shows. Nothing in it is left out, and it leaves out no socket.
func TestGuide_SocketsAnswerAsItSays(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	b.OK("run", "-d", "--name", "web", "--disk", "data:/data", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "web", "RUNNING")
	install(t, b, "grpcurl")
	ran := ""
	uid := onHost(t, b, "web").GetUid()
	for _, e := range examples(t, sockets) {
		e.command = strings.ReplaceAll(e.command, "UID-OF-WEB", uid)
		if e.command == "make bin/grpcurl" { // make test has done so
			continue
		}
		t.Run(e.where, func(t *testing.T) { runExample(t, b, e) })
		ran += e.command + "\n"
		b.WaitReady()
	}
	for _, process := range append(slices.Clone(ourProcesses), "supervisor") {
		socket := "/run/staddle/" + process + ".sock "
		for _, call := range []string{"list", "grpc.health.v1.Health/Check", "staddle."} {
			if !strings.Contains(ran, socket+call) {
				t.Errorf("%s shows no call %s of %s", sockets, call, process)
			}
		}
	}
}

// What the guide says of restarting, stopping and upgrading harms no sandbox, as it
// promises: its commands run as they stand there, in their order.
func TestGuide_OperationsHarmNoSandbox(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	was := onHost(t, b, "web").GetStatus()
	install(t, b, "grpcurl")
	done := ""
	for _, e := range examples(t, operations) {
		switch e.command {
		case "sudo staddle component restart supervisor":
			replace(t, b)
		case "sudo bin/grpcurl -plaintext -unix /run/staddle/supervisor.sock staddle.supervisor.v1.SupervisorService/Shutdown":
			runExample(t, b, e)
			bed.Eventually(t, waitLong, "the runner ends", runnerGone(b))
			b.Start() // which up does
		default:
			args := words(e.command)
			harmless := strings.HasPrefix(e.command, "sudo staddle ") && slices.Contains([]string{"status", "events", "component", "log-level"}, args[min(2, len(args)-1)])
			if !harmless || strings.Contains(e.command, "--follow") || strings.Contains(e.command, "--watch") {
				continue
			}
			b.OK(args[2:]...)
			if strings.Contains(e.command, "component stop") { // until the next line
				continue
			}
		}
		done += e.command + "\n"
		b.WaitReady()
		now := await(t, b, onHost(t, b, "web").GetUid(), "running", running)
		if sprint(pids(now)) != sprint(pids(was)) || now.GetAttempt() != 1 {
			t.Errorf("after %q: got %v, want %v", e.command, now, was)
		}
	}
	for _, part := range []string{"component restart", "component start", "component logs", "events", "log-level", "restart supervisor", "/Shutdown"} {
		if !strings.Contains(done, part) {
			t.Errorf("%s shows no %s; run was\n%s", operations, part, done)
		}
	}
}

// replace has the supervisor replace its program, and wants it to have when the
// command returns.
func replace(t *testing.T, b *bed.Bed) {
	t.Helper()
	before := processes(t, b)
	count := func() int { return strings.Count(b.Logs()["supervisor"], `"msg":"process started"`) }
	n := count()
	b.OK("component", "restart", "supervisor")
	if count() != n+1 {
		t.Errorf("%d programs were started, want one", count()-n)
	}
	b.WaitReady()
	if after := processes(t, b); sprint(after) != sprint(before) {
		t.Errorf("processes were started anew: %v, want %v", after, before)
	}
}

// install puts a tool beside the binaries of a bed, where every user may run it.
func install(t *testing.T, b *bed.Bed, tool string) {
	t.Helper()
	from, err := os.Open(filepath.Join(os.Getenv("BINARIES_UNDER_TEST"), tool))
	if err != nil {
		t.Fatalf("run make bin/%s: %v", tool, err)
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(b.Paths.Root, "bin", tool), os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(to, from)
	must(t, errors.Join(err, to.Close()))
}

// runExample runs a call of grpcurl at the places of the bed.
func runExample(t *testing.T, b *bed.Bed, e example) {
	command := strings.ReplaceAll(e.command, "/run/staddle", b.Paths.Run())
	args := words(strings.ReplaceAll(command, "/etc/staddle", b.Paths.Etc()))
	uid := 0
	if len(args) > 3 && args[0] == "sudo" && args[1] == "-u" && args[2] == "nobody" {
		uid, args = nobody, append(args[:1], args[3:]...)
	}
	if len(args) < 3 || args[0] != "sudo" || args[1] != "bin/grpcurl" {
		t.Fatalf("%q is no call that this test runs", e.command)
	}
	r := b.ProgramAs(uid, "grpcurl", args[2:]...)
	t.Logf("%s\n%s%s", e.command, r.Stdout, r.Stderr)
	if refused := strings.Contains(e.result, "rpc error:") || strings.HasPrefix(e.result, "ERROR:"); (r.Code != 0) != refused {
		t.Fatalf("exit code %d", r.Code)
	}
	switch e.form {
	case "json":
		want, got := documents(t, e.result), documents(t, r.Stdout)
		if !within(want, got) {
			t.Errorf("the document shows\n%s\nwhich is not in what came", e.result)
		}
	case "text":
		for line := range strings.Lines(e.result) {
			if !strings.Contains(r.Stdout+r.Stderr, strings.TrimSpace(line)) {
				t.Errorf("the document shows %q, which did not come", strings.TrimSpace(line))
			}
		}
	}
}

// documents reads JSON texts that follow each other.
func documents(t *testing.T, text string) []any {
	t.Helper()
	var all []any
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var one any
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("read %q: %v", text, err)
		}
		all = append(all, one)
	}
}

// within says whether all that a document shows is in what came: each key with its
// value, each element of a list somewhere in the list. "…" stands for any text.
func within(shown, came any) bool {
	switch shown := shown.(type) {
	case map[string]any:
		came, ok := came.(map[string]any)
		for key, value := range shown {
			ok = ok && within(value, came[key])
		}
		return ok
	case []any:
		came, ok := came.([]any)
		for _, element := range shown {
			ok = ok && slices.ContainsFunc(came, func(c any) bool { return within(element, c) })
		}
		return ok
	case string:
		if shown == "…" {
			text, ok := came.(string)
			return ok && text != ""
		}
	}
	return shown == came
}

// usage is the line that says how a command is called: it and no flags, or it and
// one of its own commands.
var usage = regexp.MustCompile(`(?m)^Usage:\n  (staddle(?: [a-z-]+)*)(?: \[command\])?`)

// Every command line of the documents is one that the program understands: the
// command exists, and has the flags.
func TestGuide_CommandsExist(t *testing.T) {
	b := bed.New(t, bed.Options{})
	paths, err := filepath.Glob("../docs/guide/*.md")
	must(t, err)
	checked := 0
	for _, path := range append(paths, "../README.md") {
		for _, e := range examples(t, path) {
			command, _, _ := strings.Cut(e.command, " #")
			args := words(strings.TrimPrefix(command, "sudo "))
			if args[0] != "staddle" {
				continue
			}
			checked++
			if i := slices.Index(args, "--"); i >= 0 {
				args = args[:i]
			}
			r := b.Program("staddle", append(args[1:], "--help")...)
			m := usage.FindStringSubmatch(r.Stdout)
			if r.Code != 0 || m == nil {
				t.Errorf("%s: %s: exit code %d\n%s%s", e.where, e.command, r.Code, r.Stdout, r.Stderr)
				continue
			}
			group := strings.Contains(r.Stdout, m[1]+" [command]")
			if is := strings.Fields(m[1]); group || len(is) < 2 || !inOrder(is, args) {
				t.Errorf("%s: %s: there is no such command, the program understood %q", e.where, e.command, m[1])
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d command lines in %v, want those of the guide and of the README", checked, paths)
	}
}

// inOrder says whether all of the first are among the second in that order.
func inOrder(first, second []string) bool {
	for _, word := range second {
		if len(first) > 0 && first[0] == word {
			first = first[1:]
		}
	}
	return len(first) == 0
}
