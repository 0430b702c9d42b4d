package containerd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/initproc"
	"staddle.internal/services/sandboxhost/internal/secret"
)

// Secrets is the values of secrets of all sandboxes.
func (e *Engine) Secrets() *secret.Files { return e.secrets }

// secretEnv is the file with the part of the environment that is from secrets.
func (p places) secretEnv() string { return filepath.Join(p.secrets, "env") }

// secretFolder is the folder of one mount of a secret, by its number in the spec.
func (p places) secretFolder(i int) string { return filepath.Join(p.secrets, strconv.Itoa(i)) }

// secretly is a part of the memory of secrets, in which nothing can be changed or
// executed.
func secretly(source, path string) specs.Mount {
	m := bound(source, path, true)
	m.Options = append(m.Options, "noexec")
	return m
}

func secretMounts(in input) []specs.Mount {
	var list []specs.Mount
	for i, m := range in.container.GetSecrets() {
		list = append(list, secretly(in.places.secretFolder(i), m.GetPath()))
	}
	return list
}

// placeSecrets writes what a container sees of the secrets of its sandbox.
func (e *Engine) placeSecrets(c *container, p places, spec *resourcev1.ContainerSpec, user specs.User) error {
	if len(spec.GetSecrets()) == 0 && !hasSecretEnv(spec) {
		return nil
	}
	if err := e.secrets.RemoveContainer(c.uid, c.id); err != nil {
		return err
	}
	if err := os.MkdirAll(p.secrets, 0o700); err != nil {
		return err
	}
	for i, m := range spec.GetSecrets() {
		data, err := e.secrets.Read(c.uid, m.GetSecret())
		if err != nil {
			return err
		}
		if err := writeSecret(p.secretFolder(i), m, data, user); err != nil {
			return fmt.Errorf("write secret %s: %w", m.GetSecret(), err)
		}
	}
	if !hasSecretEnv(spec) {
		return nil
	}
	env, err := e.secretEnv(c, spec)
	if err != nil {
		return err
	}
	return writeFor(p.secretEnv(), env, 0o400, user)
}

// secretEnv is the part of the environment that is from secrets, as staddle-init
// reads it.
func (e *Engine) secretEnv(c *container, spec *resourcev1.ContainerSpec) ([]byte, error) {
	var env []byte
	for _, v := range spec.GetEnv() {
		ref := v.GetSecret()
		if ref == nil {
			continue
		}
		data, err := e.secrets.Read(c.uid, ref.GetName())
		if err != nil {
			return nil, err
		}
		value := secret.Value(data, ref.GetKey())
		if value == nil {
			return nil, fault.New(fault.Unavailable, "set variable %s: secret %s was fetched without key %s", v.GetName(), ref.GetName(), ref.GetKey())
		}
		if bytes.IndexByte(value, 0) >= 0 {
			return nil, fault.WithReason(fault.New(fault.Invalid,
				"set variable %s: key %s of secret %s has a zero byte, which no environment can hold; mount it as a file",
				v.GetName(), ref.GetKey(), ref.GetName()), "SECRET_NOT_TEXT")
		}
		env = initproc.AppendEnv(env, v.GetName(), value)
	}
	return env, nil
}

// writeSecret writes the files of one mount.
func writeSecret(dir string, m *resourcev1.SecretMount, data *resourcev1.SecretData, user specs.User) error {
	mode, err := modeOf(m.GetMode(), 0o400)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the process's mask does not count
		return err
	}
	files := m.GetFiles()
	if len(files) == 0 {
		for _, entry := range data.GetEntries() {
			files = append(files, &resourcev1.SecretFile{Key: entry.GetKey()})
		}
	}
	for _, f := range files {
		value := secret.Value(data, f.GetKey())
		if value == nil {
			return fault.New(fault.Unavailable, "it was fetched without key %s", f.GetKey())
		}
		name := f.GetFile()
		if name == "" {
			name = f.GetKey()
		}
		if err := writeFor(filepath.Join(dir, name), value, mode, user); err != nil {
			return err
		}
	}
	return nil
}
