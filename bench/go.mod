module staddle.internal/bench

go 1.26.7

require (
	staddle.internal/e2e v0.0.0
	staddle.internal/kit v0.0.0
	staddle.internal/proto v0.0.0
)

require (
	github.com/containerd/containerd/v2 v2.4.2 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	staddle.internal/e2e => ../e2e
	staddle.internal/kit => ../kit
	staddle.internal/proto => ../proto
)
