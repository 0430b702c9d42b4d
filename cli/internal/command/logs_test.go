package command_test

import (
	"strings"
	"testing"
)

func TestLogs_RefusesWhatItCannotMean(t *testing.T) {
	for _, args := range [][]string{
		{}, {"web", "-l", "app=web"}, {"web", "--tail", "-2"}, {"web", "--tail", "100001"}, {"web", "--since", "yesterday"},
		{"web", "--since", "-5m"}, {"web", "-p", "-f"}, {"web", "-p", "--attempt", "2"}, {"web", "-c", "a", "--all-containers"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			want(t, cli(t, append([]string{"--node-socket", "/nonexistent.sock", "logs"}, args...)...), 2)
		})
	}
}

func TestLogs_OfSeveralSandboxesAreLinesWithTheirNames(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"web", "db"} {
		want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", name, "-l", "app=shop", "-l", "tier="+name, "serve"), 0)
	}
	got := cli(t, "--node-socket", h.path, "logs", "web", "db")
	want(t, got, 0, "web/main out \ndb/main out \n")
	want(t, cli(t, "--node-socket", h.path, "logs", "web", "--tail", "0"), 0)
	want(t, cli(t, "--node-socket", h.path, "logs", "web", "-o", "json"), 0, `"stream":"stdout","offset":0,"text":"out "}`)
	want(t, cli(t, "--node-socket", h.path, "logs", "web", "--previous"), 3, "no output")
	got = cli(t, "--node-socket", h.path, "logs", "-l", "app=shop")
	if want(t, got, 0, "web/main out \n"); !strings.Contains(got.out, "db/main out \n") {
		t.Errorf("of all with a label: %q", got.out)
	}
	got = cli(t, "--node-socket", h.path, "logs", "-l", "app=shop,tier=db")
	if want(t, got, 0, "out "); strings.Contains(got.out, "web") {
		t.Errorf("of one by its labels: %q", got.out)
	}
	want(t, cli(t, "--node-socket", h.path, "logs", "-l", "app=other"), 3, "no sandbox of this node")
	want(t, cli(t, "--node-socket", h.path, "logs", "-l", "tier!=db"), 2, "is not key=value")
	want(t, cli(t, "--node-socket", h.path, "logs", "web", "none"), 3, "none")
}
