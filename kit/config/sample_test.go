package config_test

import (
	"testing"

	"staddle.internal/kit/config"
	"staddle.internal/kit/config/configtest"
)

func TestSample(t *testing.T) {
	configtest.Sample(t, "../../deploy/config/node.yaml", config.DefaultNode(), "name")
}
