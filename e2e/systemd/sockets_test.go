//go:build systemd

package systemd_test

import (
	"fmt"
	"strings"
	"testing"
)

// withSocket are the processes that have a unit for their socket.
var withSocket = processes[1:]

func socketPath(process string) string { return "/run/staddle/" + process + ".sock" }

// A socket may be restarted like a process: what serves it is restarted too, and no
// workload notices.
func TestNode_SandboxOutlivesEveryRestartOfASocket(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	n.unharmed(func() {
		for _, p := range withSocket {
			before := n.pid(p)
			n.ok("systemctl", "restart", "staddle-"+p+".socket")
			n.eventually(p+" and its socket to be restarted", func() (bool, string) { // systemctl waits for the socket alone
				pid, states := n.pid(p), n.show(unit(p), "ActiveState")+" "+n.show("staddle-"+p+".socket", "ActiveState")
				return pid != before && pid != "0" && states == "active active", states + " as process " + pid
			})
		}
	})
	n.healthy()
}

// healthy waits until every process says that it is ready: one that looked while a
// socket was away looks again after some seconds.
func (n node) healthy() {
	n.Helper()
	n.eventually("every process to be ready", func() (bool, string) {
		r := n.run("staddle", "status")
		return r.code == 0, r.text
	})
}

// A cleaner of temporary files, or a person, removes sockets: they come back, the same
// ones, and nobody was restarted.
func TestNode_RemovedSocketsComeBack(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	identity := func() string {
		var all []string
		for _, p := range withSocket {
			all = append(all, p+" "+n.pid(p)+" "+strings.TrimSpace(n.run("stat", "--format=%i", socketPath(p)).text))
		}
		return strings.Join(all, "\n")
	}
	before := identity()
	for _, lost := range [][]string{{socketPath("sandboxhost")}, {"--", socketPath("presence"), socketPath("storage")}, {"--recursive", "/run/staddle/*.sock"}} {
		n.unharmed(func() {
			n.ok("sh", "-c", "rm "+strings.Join(lost, " "))
			n.eventually("the same sockets to be back", func() (bool, string) {
				now := identity()
				return now == before, now + "\nwant\n" + before
			})
		})
	}
	n.healthy()
	// What is stopped for good leaves no second name behind from which it would come back.
	n.ok("systemctl", "stop", "staddle-storage-agent.socket")
	n.eventually("a stopped socket to be gone", func() (bool, string) {
		seen := n.run("ls", "/run/staddle", "/run/staddle.sockets").text
		return !strings.Contains(seen, "storage-agent.sock\n"), seen
	})
	if state := n.show(unit("storage-agent"), "ActiveState"); state != "inactive" {
		t.Errorf("its service is %s", state)
	}
	n.ok("systemctl", "start", "staddle-storage-agent.socket", unit("storage-agent"))
	n.waitReady()
}

// knock connects to the gateway again and again until its file is there, and says how
// often, and how often it was refused.
const knock = `tries=0 refused=0
until [ -e /tmp/enough ]; do
  tries=$((tries + 1))
  (exec 3<>/dev/tcp/127.0.0.1/8444) 2>/dev/null || refused=$((refused + 1))
done
echo $tries $refused`

// The gateway refuses no caller while its process is restarted or killed, although no
// unit knows its address.
func TestNode_GatewayRefusesNobody(t *testing.T) {
	n := ready(t)
	n.eventually("the gateway to be bound", func() (bool, string) {
		r := n.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8444")
		return r.code == 0, r.text
	})
	n.run("rm", "-f", "/tmp/enough")
	done := make(chan result, 1)
	go func() { done <- n.run("bash", "-c", knock) }() // waited for below
	for range 2 {
		n.ok("systemctl", "restart", unit("clusteraccess"))
		before := n.pid("clusteraccess")
		n.ok("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit("clusteraccess"))
		n.eventually("clusteraccess to be up again", func() (bool, string) {
			pid, state := n.pid("clusteraccess"), n.show(unit("clusteraccess"), "ActiveState")
			return state == "active" && pid != before && pid != "0", state + " as process " + pid
		})
	}
	n.ok("touch", "/tmp/enough")
	r := <-done
	var tries, refused int
	if _, err := fmt.Sscan(r.text, &tries, &refused); err != nil || tries < 20 || refused > 0 {
		t.Errorf("of %d calls %d were refused, want many and none: %q (%v)", tries, refused, r.text, err)
	}
	n.waitReady()

	// With another address the old one takes no calls any more.
	const config = "/etc/staddle/node.yaml"
	was := n.ok("cat", config)
	t.Cleanup(func() {
		n.write(config, was)
		n.ok("systemctl", "restart", unit("clusteraccess"))
	})
	n.write(config, was+"listen_address: 127.0.0.1:8555\n")
	n.ok("systemctl", "restart", unit("clusteraccess"))
	n.eventually("the new address alone to be served", func() (bool, string) {
		then, now := n.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8444"), n.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8555")
		return then.code != 0 && now.code == 0, then.text + now.text
	})
}
