package host

import (
	"fmt"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// oomKills is how many processes of an attempt the kernel is known to have ended for
// memory.
func oomKills(s *resourcev1.SandboxStatus) (n uint64) {
	for _, cs := range s.GetContainers() {
		n += cs.GetOomKills()
	}
	return n
}

// oomKillsBeside is how many of those ran beside the main processes.
func oomKillsBeside(s *resourcev1.SandboxStatus) (n uint64) {
	for _, cs := range s.GetContainers() {
		n += cs.GetOomKillsBeside()
	}
	return n
}

// describeKills is one sentence about processes that the kernel ended for memory
// beside the main one, or nothing.
func describeKills(e *resourcev1.ContainerExit) string {
	others := e.GetOomKills()
	if e.GetOomKilled() {
		others--
	}
	switch others {
	case 0:
		return ""
	case 1:
		return ", another process of it was ended for using more memory than its limit"
	}
	return fmt.Sprintf(", %d other processes of it were ended for using more memory than its limit", others)
}
