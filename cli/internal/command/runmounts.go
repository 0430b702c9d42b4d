package command

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/exit"
)

// mountOptions are the flags of "run" about what the container mounts.
type mountOptions struct {
	tmpfs, files, scratch, hostPaths []string
	shm                              string
}

func mountFlags(f *pflag.FlagSet, o *mountOptions) {
	f.StringArrayVar(&o.tmpfs, "tmpfs", nil, "folder in memory, as `/PATH[:SIZE]`; 64MiB if no size is given")
	f.StringArrayVar(&o.files, "config-file", nil, "file that it sees read-only, as `FILE:/PATH[:MODE]`; FILE is read now; not for secrets")
	f.StringArrayVar(&o.scratch, "scratch", nil, "folder that lives as long as the sandbox, as `NAME:/PATH[:ro]`")
	f.StringArrayVar(&o.hostPaths, "host-path", nil, "folder or file of the node, as `/HOST:/PATH[:ro]`, if node.yaml allows it")
	f.StringVar(&o.shm, "shm-size", "", "size of /dev/shm, a `SIZE` like 128MiB (default 64MiB)")
}

// add puts the mounts into a spec.
func (o mountOptions) add(spec *resourcev1.SandboxSpec, c *resourcev1.ContainerSpec) error {
	for _, text := range o.tmpfs {
		path, size, sized := strings.Cut(text, ":")
		m := &resourcev1.TmpfsMount{Path: path}
		if sized {
			bytes, err := sizeOf("--tmpfs", size)
			if err != nil {
				return err
			}
			m.SizeLimitBytes = &bytes
		}
		c.Tmpfs = append(c.Tmpfs, m)
	}
	for _, text := range o.files {
		file, err := configFileOf(text)
		if err != nil {
			return err
		}
		c.Files = append(c.Files, file)
	}
	for _, text := range o.scratch {
		name, path, readOnly, ok := mountOf(text)
		if !ok {
			return exit.BadUsage("--scratch %q: write NAME:/PATH or NAME:/PATH:ro", text)
		}
		c.Scratch = append(c.Scratch, &resourcev1.ScratchMount{Volume: name, Path: path, ReadOnly: readOnly})
		if !slices.ContainsFunc(spec.GetScratchVolumes(), func(v *resourcev1.ScratchVolume) bool { return v.GetName() == name }) {
			spec.ScratchVolumes = append(spec.ScratchVolumes, &resourcev1.ScratchVolume{Name: name})
		}
	}
	for _, text := range o.hostPaths {
		host, path, readOnly, ok := mountOf(text)
		if !ok || !strings.HasPrefix(host, "/") {
			return exit.BadUsage("--host-path %q: write /HOST:/PATH or /HOST:/PATH:ro", text)
		}
		c.HostMounts = append(c.HostMounts, &resourcev1.HostMount{HostPath: host, Path: path, ReadOnly: readOnly})
	}
	if o.shm == "" {
		return nil
	}
	size, err := sizeOf("--shm-size", o.shm)
	spec.ShmSizeBytes = &size
	return err
}

// mountOf reads SOURCE:/PATH or SOURCE:/PATH:ro.
func mountOf(text string) (source, path string, readOnly, ok bool) {
	parts := strings.Split(text, ":")
	readOnly = len(parts) == 3 && parts[2] == "ro"
	if len(parts) != 2 && !readOnly || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return "", "", false, false
	}
	return parts[0], parts[1], readOnly, true
}

// maxConfigFile is the most that the contract takes of one file.
const maxConfigFile = 256 << 10

// configFileOf reads FILE:/PATH[:MODE], and the file.
func configFileOf(text string) (*resourcev1.ConfigFile, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return nil, exit.BadUsage("--config-file %q: write FILE:/PATH or FILE:/PATH:MODE", text)
	}
	file := &resourcev1.ConfigFile{Path: parts[1]}
	if len(parts) == 3 {
		file.Mode = parts[2]
	}
	raw, err := readUpTo(parts[0], maxConfigFile)
	if err != nil {
		return nil, exit.BadUsage("--config-file %q: %w", text, err)
	}
	file.Content = &resourcev1.ConfigFile_Data{Data: raw}
	if utf8.Valid(raw) {
		file.Content = &resourcev1.ConfigFile_Text{Text: string(raw)}
	}
	return file, nil
}

var errTooLarge = errors.New("the file has more than 256 KiB; put it into the image or on a disk")

func readUpTo(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = errTooLarge
	}
	return raw, errors.Join(err, f.Close())
}

// sizeOf reads a size like 64MiB.
func sizeOf(flag, text string) (int64, error) {
	var size config.Size
	if err := size.UnmarshalText([]byte(text)); err != nil {
		return 0, exit.BadUsage("%s: %w", flag, err)
	}
	return size.Bytes(), nil
}
