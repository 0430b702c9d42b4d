package settings

import (
	"testing"

	"staddle.internal/kit/config/configtest"
)

func TestSample(t *testing.T) {
	configtest.Sample(t, "../../../../deploy/config/coordinator.yaml", Default())
}
