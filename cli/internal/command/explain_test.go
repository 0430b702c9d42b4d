package command_test

import "testing"

func TestExplain_SaysWhyAndWhatNext(t *testing.T) {
	h := newHost(t)
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "serve"), 0)
	want(t, cli(t, "--node-socket", h.path, "explain", "web", "-o", "yaml"), 2, "table or json")
	want(t, cli(t, "--node-socket", h.path, "explain", "web"), 0, "web is running")
	uid := h.byName("web").GetUid()
	h.change(func() { h.boxes[uid].Trouble = "its limits cannot be set" })
	want(t, cli(t, "--node-socket", h.path, "explain", "web"), 7, "trouble: its limits cannot be set", "next: mend")
	want(t, cli(t, "--node-socket", h.path, "explain", "web", "-o", "json"), 7, `"healthy": false`, `"what": "trouble"`)
	want(t, cli(t, "--node-socket", h.path, "explain", "none"), 3, "none")
}
