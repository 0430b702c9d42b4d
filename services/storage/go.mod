module staddle.internal/services/storage

go 1.26.7

require (
	staddle.internal/kit v0.0.0
	staddle.internal/proto v0.0.0
)

require (
	github.com/moby/sys/mountinfo v0.7.3 // indirect
	golang.org/x/sys v0.48.0 // indirect
	k8s.io/client-go v0.37.2 // indirect
)

replace (
	staddle.internal/kit => ../../kit
	staddle.internal/proto => ../../proto
)
