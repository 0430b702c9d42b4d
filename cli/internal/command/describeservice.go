package command

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/selector"

	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

func (a *app) describeService(ctx context.Context, t *target.Cluster, ref string) error {
	r, err := t.Lookup(ctx, resourcev1.Kind_KIND_SERVICE, ref)
	if err != nil {
		return err
	}
	if a.format != output.Table {
		return output.PrintOne(a.out, a.format, columnsOf(resourcev1.Kind_KIND_SERVICE), recordRow(time.Now(), r))
	}
	all, err := t.Records(ctx, resourcev1.Kind_KIND_SANDBOX, "")
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, serviceDescription(r, all))
	return err
}

// serviceDescription is all that the cluster knows of a service, for people.
func serviceDescription(r *resourcev1.Resource, sandboxes []*resourcev1.Resource) string {
	meta, spec := r.GetMeta(), r.GetService().GetSpec()
	overview := slices.DeleteFunc([][]string{
		{"Name:", meta.GetName()},
		{"Uid:", meta.GetUid()},
		{"Labels:", labelsText(meta.GetLabels())},
		{"Created:", moment(meta.GetCreatedAt())},
		{"Address:", addressText(spec, r.GetService().GetPlacement().GetAddress())},
		{"Selector:", labelsText(spec.GetSelector())},
		{"Affinity:", affinityText(spec)},
	}, func(line []string) bool { return line[1] == "" })
	parts := []string{output.Align(overview)}
	ports := [][]string{{"PORT", "NAME", "PROTOCOL", "TARGET", "NODE-PORT"}}
	for _, p := range spec.GetPorts() {
		target, nodePort := p.GetTargetPort(), ""
		if target == 0 {
			target = p.GetPort()
		}
		if p.GetNodePort() != 0 {
			nodePort = nodePortText(p)
		}
		ports = append(ports, []string{
			number(p.GetPort()), p.GetName(), firstOf(p.GetProtocol(), "tcp"), number(target), nodePort,
		})
	}
	parts = append(parts, output.Align(ports))
	behind := [][]string{{"SANDBOX", "NODE", "PHASE", "READY", "ADDRESS"}}
	for _, record := range sandboxes {
		if selector.Selector(spec.GetSelector()).Matches(record.GetMeta().GetLabels()) {
			s := sandbox.FromRecord(record)
			behind = append(behind, []string{s.Name, s.Node, phaseOf(&s), readyOf(&s), strings.Join(s.Status.GetAddresses(), ",")})
		}
	}
	if len(behind) > 1 {
		parts = append(parts, output.Align(behind))
	}
	return strings.Join(parts, "\n")
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
