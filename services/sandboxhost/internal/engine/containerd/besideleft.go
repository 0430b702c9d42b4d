package containerd

import (
	"math"
	"path/filepath"
	"strings"

	"staddle.internal/services/sandboxhost/internal/engine"
)

// Left lists the processes beside main ones that an earlier life of ours has left, by the
// folders that were made for them. It does not ask whether they still run.
func (e *Engine) Left() ([]engine.LeftProcess, error) {
	uids, err := e.pins.Sandboxes()
	if err != nil {
		return nil, err
	}
	var left []engine.LeftProcess
	for _, uid := range uids {
		top := filepath.Join(e.pins.Dir(uid), besideFolder)
		containers, err := entries(top)
		if err != nil {
			return nil, err
		}
		for _, containerID := range containers {
			ids, err := entries(filepath.Join(top, containerID))
			if err != nil {
				return nil, err
			}
			for _, name := range ids {
				pipes, err := foundPipes(e.besideDir(uid, containerID, name))
				if err != nil {
					return nil, err
				}
				left = append(left, engine.LeftProcess{
					UID: uid, Detached: strings.HasPrefix(name, detachedPrefix),
					Process: &executed{e: e, containerID: containerID, id: name, pipes: pipes, killsBefore: math.MaxUint64},
				})
			}
		}
	}
	return left, nil
}
