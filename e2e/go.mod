module staddle.internal/e2e

go 1.26.7

require (
	staddle.internal/kit v0.0.0
	staddle.internal/proto v0.0.0
)

require (
	github.com/containerd/containerd/api v1.12.0 // indirect
	github.com/google/go-containerregistry v0.22.1 // indirect
)

replace (
	staddle.internal/kit => ../kit
	staddle.internal/proto => ../proto
)
