package bed

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// Stock lists all that a machine has in the kernel, in containerd and in its folders, in
// a form that is the same again when nothing was leaked: each open file and each
// goroutine of its processes too.
func (b *Bed) Stock(ctx context.Context) ([]string, error) {
	all, err := b.Containerd(ctx)
	if err != nil {
		return nil, err
	}
	for kind, names := range b.inventory() {
		if kind == "processes" {
			for i, name := range names {
				names[i], _, _ = strings.Cut(name, " ")
			}
		}
		for _, name := range names {
			all = append(all, kind+" "+name)
		}
	}
	rules, err := exec.Command("ip", "netns", "exec", b.NS, "nft", "--stateless", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	all = append(all, "rules "+string(rules))
	specials, err := b.specials()
	if err != nil {
		return nil, err
	}
	all = append(all, specials...)
	graph, err := b.Graph(ctx)
	if err != nil {
		return nil, err
	}
	for name, c := range graph {
		all = append(all, openFiles(name, int(c.GetPid()))...)
		if name == "containerd" {
			continue
		}
		s, err := processv1.NewProcessServiceClient(b.Conn(name)).GetStatus(ctx, &processv1.GetStatusRequest{})
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("%s%s: %d", GoroutinesOf, name, s.GetGoroutines()))
	}
	slices.Sort(all)
	return all, nil
}

// GoroutinesOf begins what Stock says of a process, before its name.
const GoroutinesOf = "goroutines of "

// specials lists FIFOs, sockets and folders below the folder that ends with the boot,
// and the folders of sandboxes in that which lasts.
func (b *Bed) specials() ([]string, error) {
	var all []string
	err := filepath.WalkDir(b.Paths.Run(), func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // it went meanwhile
		}
		if err == nil && d.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDir) != 0 {
			all = append(all, d.Type().String()+" "+path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{"logs", "scratch"} {
		entries, err := os.ReadDir(filepath.Join(b.Paths.Var("sandboxhost"), folder))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, folder+" "+e.Name())
		}
	}
	return all, nil
}

// number is what differs between two sockets, pipes or files of the same use.
var number = regexp.MustCompile(`\d+`)

// openFiles lists what a process has open, without what differs each time.
func openFiles(name string, pid int) []string {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it ended: the next stock has another
	}
	var all []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil {
			all = append(all, "open by "+name+": "+number.ReplaceAllString(target, "N"))
		}
	}
	return all
}
