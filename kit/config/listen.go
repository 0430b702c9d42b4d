package config

import "go.yaml.in/yaml/v3"

// CoordinatorAddress is where a coordinator listens whose file does not say, and
// where a node looks for one.
const CoordinatorAddress = "127.0.0.1:8443"

// GatewayDefault is where the gateway of a node listens whose file does not say.
const GatewayDefault = "127.0.0.1:8444"

// MetricsDefault is where the metrics of a node are whose file does not say.
const MetricsDefault = "127.0.0.1:9464"

// ListenAddress returns the listen_address of a node's file or a coordinator's, and
// unset where it says none, for whoever makes the socket for the process. It judges
// nothing else in the file: that is the process's to do, and to tell. Empty means
// that the file cannot be read, or that it wants no socket.
func ListenAddress(path, unset string) string {
	data, err := ReadFile(path)
	if err != nil {
		return ""
	}
	var file struct {
		Address string `yaml:"listen_address"`
	}
	file.Address = unset
	if len(data) > maxFileSize || yaml.Unmarshal(data, &file) != nil {
		return ""
	}
	return file.Address
}
