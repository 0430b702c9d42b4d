package config

import "go.yaml.in/yaml/v3"

// CoordinatorAddress is where a coordinator listens whose file does not say, and
// where a node looks for one.
const CoordinatorAddress = "127.0.0.1:8443"

// ListenAddress returns the listen_address of a coordinator's file, for whoever
// makes the socket for it. It judges nothing else in the file: that is the
// coordinator's to do, and to tell. Empty means that the file cannot be read.
func ListenAddress(path string) string {
	data, err := ReadFile(path)
	if err != nil {
		return ""
	}
	var file struct {
		Address string `yaml:"listen_address"`
	}
	file.Address = CoordinatorAddress
	if len(data) > maxFileSize || yaml.Unmarshal(data, &file) != nil {
		return ""
	}
	return file.Address
}
