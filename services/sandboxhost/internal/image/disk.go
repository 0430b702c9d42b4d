package image

import (
	"context"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/filesystem"
)

// Roots are the folders in which the runtime keeps images, compressed and unpacked, as
// it says itself. They are asked for once: only another runtime has others.
func (s *Store) Roots(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	known := s.roots
	s.mu.Unlock()
	if len(known) > 0 {
		return known, nil
	}
	c, err := s.deps.Client()
	if err != nil {
		return nil, err
	}
	roots, err := rootsOf(ctx, c, s.cfg.Snapshotter)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.roots = roots
	s.mu.Unlock()
	return roots, nil
}

func rootsOf(ctx context.Context, c *containerd.Client, snapshotter string) ([]string, error) {
	plugins, err := c.IntrospectionService().Plugins(ctx,
		"type==io.containerd.content.v1", "type==io.containerd.snapshotter.v1,id=="+snapshotter)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "ask the runtime where images are: %w", err)
	}
	var roots []string
	for _, p := range plugins.GetPlugins() {
		if root := p.GetExports()["root"]; root != "" && !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	if len(roots) == 0 {
		return nil, fault.New(fault.Unavailable, "ask the runtime where images are: it does not say")
	}
	slices.Sort(roots)
	return roots, nil
}

// disks measures the filesystems that hold images.
func (s *Store) disks(ctx context.Context) ([]filesystem.Space, error) {
	roots, err := s.Roots(ctx)
	if err != nil {
		return nil, err
	}
	var all []filesystem.Space
	for _, root := range roots {
		d, err := filesystem.Measure(root)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// fullest says whether one of them asks for a cleaning.
func (r Rules) fullest(disks []filesystem.Space, underWay bool) (filesystem.Space, bool) {
	for _, d := range disks {
		if r.Full(d, underWay) {
			return d, true
		}
	}
	return filesystem.Space{}, false
}
