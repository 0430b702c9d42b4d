package gateway

import (
	"strings"

	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/rpc"
)

// ProcessKey is the metadata by which a caller names the process that is to answer,
// where each process of a node serves what it asks for.
const ProcessKey = "staddle-process"

// ownPrefix begins the metadata that only we give a meaning to. None of it is taken
// from outside.
const ownPrefix = "staddle-"

// perHop are keys that belong to one connection. Those of HTTP/2 itself and of grpc
// are known by how they begin.
var perHop = map[string]bool{
	"content-type": true, "user-agent": true, "te": true, "connection": true, "host": true,
	"proxy-connection": true, "keep-alive": true, "transfer-encoding": true, "upgrade": true,
}

// passes says whether metadata goes on to the next connection.
func passes(key string) bool {
	return !perHop[key] && !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-") && !strings.HasPrefix(key, ownPrefix)
}

// inward is what of a caller's metadata reaches the process, with the identity that
// its certificate proves and no other.
func inward(from metadata.MD, caller string) metadata.MD {
	md := outward(from)
	md.Set(rpc.CallerKey, caller)
	return md
}

// outward is what of a process's headers or trailers reaches the caller.
func outward(from metadata.MD) metadata.MD {
	md := make(metadata.MD, len(from)+1)
	for key, values := range from {
		if passes(key) {
			md[key] = values
		}
	}
	return md
}
