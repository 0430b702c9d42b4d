#!/bin/bash
# First process of a runner's container: makes of the container what a machine is to Staddle, and becomes the supervisor.
set -euo pipefail
fail() { echo "runner: $1" >&2; exit 1; }

# Its own view of control groups, in which the container's are the root: all that is made below them ends with the container. The
# engine may have given one already.
if grep -qv ':/$' /proc/self/cgroup; then
  exec unshare --cgroup "$0" || fail "cannot make a namespace of control groups: the container lacks SYS_ADMIN, or a seccomp profile forbids it"
fi

# mount_v1 HIERARCHY...: one folder for each, as a machine with version 1 has them; the second version, which has no controllers
# then, is beside them.
mount_v1() {
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  local line controllers name
  while IFS= read -r line; do
    controllers=${line#*:} controllers=${controllers%:/}
    case $controllers in
      "") mkdir /sys/fs/cgroup/unified && mount -t cgroup2 cgroup /sys/fs/cgroup/unified ;;
      name=*) mkdir "/sys/fs/cgroup/${controllers#name=}" && mount -t cgroup -o "none,$controllers" cgroup "/sys/fs/cgroup/${controllers#name=}" ;;
      *)
        mkdir "/sys/fs/cgroup/$controllers" && mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$controllers"
        case $controllers in *,*) for name in ${controllers//,/ }; do ln -s "$controllers" "/sys/fs/cgroup/$name"; done ;; esac
        ;;
    esac
  done </proc/self/cgroup
}

# mount_v2: a group with controllers for others holds no process itself, so whatever is here moves into one of its own.
mount_v2() {
  mount -t cgroup2 cgroup /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/init
  local pid
  while read -r pid; do echo "$pid" >/sys/fs/cgroup/init/cgroup.procs || [ ! -e "/proc/$pid" ]; done < <(cat /sys/fs/cgroup/cgroup.procs)
  local controller
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
}

if [ "$(cat /proc/self/cgroup)" = 0::/ ]; then mount_v2; else mount_v1; fi || fail "cannot mount control groups: $(id -un) lacks SYS_ADMIN"
# The settings of the container's own network, which the sandboxes share, are writable on a machine.
mount -o remount,bind,rw /proc/sys || fail "cannot make /proc/sys writable"

# Everything in memory ended with the last life of the container, as with a reboot.
STADDLE_BOOT_ID=$(cat /proc/sys/kernel/random/uuid)
export STADDLE_BOOT_ID

# The identity that the coordinator wrote for this node, each file to the one process that uses it.
first=$(sed -n 's/^ *first_id: *//p' /etc/staddle/node.yaml)
for file in ca.crt node.crt node.key; do
  [ -s "/identity/$file" ] || fail "there is no /identity/$file: the coordinator writes it for the nodes that its coordinator.yaml names, and its volume for $(hostname) has to be mounted here"
  install -D -m 0600 -o "${first:-0}" -g "${first:-0}" "/identity/$file" "/etc/staddle/pki/$file"
done
exec staddle-node supervisor "$@"
