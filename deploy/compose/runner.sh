#!/bin/bash
# First process of a runner's container: makes of the container what a machine is to Staddle, and becomes the supervisor.
set -Eeuo pipefail
fail() { echo "runner: $1" >&2; exit 1; }
doing="make a namespace of control groups"
trap 'fail "cannot $doing: the container lacks SYS_ADMIN, or a profile of seccomp or AppArmor forbids it"' ERR

# Its own view of control groups, in which the container's are the root: all that is made below them ends with the container. The
# engine may have given one already.
if grep -qv ':/$' /proc/self/cgroup; then
  unshare --cgroup true # exec would leave no word of why it failed
  exec unshare --cgroup "$0" "$@"
fi

# mount_v1: one folder for each hierarchy, as a machine with version 1 has them; version 2, which has no controllers then, is beside
# them.
mount_v1() {
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  cd /sys/fs/cgroup
  local line controllers name
  while IFS= read -r line; do
    controllers=${line#*:} controllers=${controllers%:/} name=${controllers#name=}
    mkdir "${name:-unified}"
    case $controllers in
      "") mount -t cgroup2 cgroup unified ;;
      name=*) mount -t cgroup -o "none,$controllers" cgroup "$name" ;;
      *) mount -t cgroup -o "$controllers" cgroup "$name" ;;
    esac
    # Two controllers in one hierarchy are found by the name of each.
    case $name in *,*) for controllers in ${name//,/ }; do ln -s "$name" "$controllers"; done ;; esac
  done </proc/self/cgroup
  cd /
}

# mount_v2: a group with controllers for others holds no process itself, so whatever is here moves into one of its own.
mount_v2() {
  umount /sys/fs/cgroup # the engine's, to which nothing can be written: the same is not mounted twice in one place
  mount -t cgroup2 cgroup /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/init
  local pid controller
  while read -r pid; do
    echo "$pid" 2>/dev/null >/sys/fs/cgroup/init/cgroup.procs || [ ! -e "/proc/$pid" ] # that which listed them has ended
  done < <(cat /sys/fs/cgroup/cgroup.procs)
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
}

doing="mount control groups"
if [ "$(cat /proc/self/cgroup)" = 0::/ ]; then mount_v2; else mount_v1; fi
# The settings of the container's own network, which the sandboxes share, are writable on a machine.
doing="make /proc/sys writable"
mount -o remount,bind,rw /proc/sys

# Everything in memory ended with the last life of the container, as with a reboot.
STADDLE_BOOT_ID=$(cat /proc/sys/kernel/random/uuid)
export STADDLE_BOOT_ID

doing="take the identity of this node"
# The identity that the coordinator wrote for this node, each file to the one process that uses it.
first=$(sed -n 's/^ *first_id: *//p' /etc/staddle/node.yaml)
for file in ca.crt node.crt node.key; do
  [ -s "/identity/$file" ] || fail "there is no /identity/$file: the coordinator writes it for the nodes that its coordinator.yaml names, and its volume for $(hostname) has to be mounted here"
  install -D -m 0600 -o "${first:-0}" -g "${first:-0}" "/identity/$file" "/etc/staddle/pki/$file"
done
exec staddle-node supervisor "$@"
