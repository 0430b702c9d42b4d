package sandboxhost

import (
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/image"
)

// pinned are the images that a sandbox was made of, which its tags may not mean any more.
func pinned(state *sandboxhostv1.SandboxState) []image.User {
	digests := map[string]string{}
	for _, c := range state.GetStatus().GetContainers() {
		digests[c.GetName()] = c.GetImageDigest()
	}
	var users []image.User
	for _, c := range state.GetSpec().GetContainers() {
		if d := digests[c.GetName()]; d != "" {
			users = append(users, image.User{Name: "sandbox " + state.GetName(), Image: image.Pinned(c.GetImage(), d)})
		}
	}
	return users
}
