package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage_AMistakeIsAnsweredWithTheRightCommand(t *testing.T) {
	tests := []struct{ line, says, try string }{
		{"logs", "logs: an argument is missing", "staddle logs [flags] SANDBOX... | -l SELECTOR"},
		{"delete sandbox", "delete: an argument is missing", "staddle delete KIND NAME|UID... [flags]"},
		{"ps web", "ps: there are too many arguments: web", "staddle ps [flags]"},
		{"get sandbox a b", "get: there are too many arguments: sandbox a b", "staddle get KIND [NAME|UID] [flags]"},
		{"ps --wath", "ps: unknown flag: --wath", "staddle ps --watch"},
		{"ps --qqqqqqqqqqqq", "ps: unknown flag: --qqqqqqqqqqqq", "staddle ps --help"},
		{"ps -q", "ps: unknown shorthand flag: 'q' in -q", "staddle ps --help"},
		{"delete sanbox web other", `there is no kind "sanbox"`, "staddle delete sandbox web other"},
		{"nod ls", `there is no command "nod"`, "staddle node"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			got := cli(t, strings.Fields(tt.line)...)
			if got.code != 2 || !strings.Contains(got.err, "staddle: "+tt.says) || !strings.HasSuffix(got.err, "\ntry: "+tt.try+"\n") {
				t.Errorf("exit code %d, says\n%s", got.code, got.err)
			}
		})
	}
}

// completed is what a shell is offered after the words; the last one is a prefix.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	got := cli(t, append([]string{"__complete"}, words...)...)
	want(t, got, 0)
	lines := strings.Fields(got.out)
	return lines[:len(lines)-1] // the last one tells the shell about files
}

func TestCompletion_OffersWhatIsThere(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	tests := []struct{ line, offers string }{
		{"logs ", "web"},
		{"logs web ", ""},
		{"rm web ", ""},
		{"get ", "sandbox service disk disklease node"},
		{"get disk ", "data"},
		{"delete sandbox ", "web"},
		{"delete nothing ", ""},
		{"disk rm ", "data"},
		{"logs --stream ", "stdout stderr both"},
		{"logs web --container ", "main"},
		{"logs web -c ", "main"},
		{"logs missing -c ", ""},
		{"logs -c ", ""},
		{"exec web -c ", "main"},
		{"attach web --container ", "main"},
		{"cp web:/etc/hosts . -c ", "main"},
		{"cp ./hosts web:/etc -c ", "main"},
		{"cp ./hosts -c ", ""},
		{"ps -o ", "table json yaml name"},
		{"ps ", ""},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			if got := strings.Join(completed(t, c.flags(strings.Split(tt.line, " ")...)...), " "); got != tt.offers {
				t.Errorf("offers %q, want %q", got, tt.offers)
			}
		})
	}
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "alone", "serve"), 0)
	if got := completed(t, "--node-socket", h.path, "stop", ""); len(got) != 1 || got[0] != "alone" {
		t.Errorf("for a node alone it offers %q", got)
	}
	if got := completed(t, "--node-socket", h.path+".none", "stop", ""); len(got) != 0 {
		t.Errorf("without a target it offers %q", got)
	}
}

func TestStatus_NamesTheFileThatNamesAnInstallationThatIsGone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	file := filepath.Join(home, "staddle", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\nroot: " + home + "/gone\n")
	want(t, cli(t, "status"), 3, home+"/gone/etc/node.yaml does not exist", file, "try: staddle up")
	write("version: 1\nroot: [\n")
	want(t, cli(t, "status"), 2, file+":", "try: correct the file, or remove it")
}
