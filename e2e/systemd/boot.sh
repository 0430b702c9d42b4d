#!/usr/bin/env bash
# Boots a machine: systemd as process 1 in namespaces of its own, on a root file system in a folder. Stays in the foreground until
# the machine is off. Arguments: the folder, a name that is free in every cgroup hierarchy, and the boot id that its services are told.
set -euo pipefail
root=$1 name=$2 boot=$3
hierarchies=$(awk '$3 == "cgroup" || $3 == "cgroup2" {print $2, $3, $4}' /proc/mounts)

outside() {
  # A cgroup of its own in every hierarchy, which a cgroup namespace then makes the root: no group of the machine meets one of the host.
  while read -r dir type _; do
    [ "$type" = cgroup ] || sed 's/[a-z]*/+&/g' "$dir/cgroup.controllers" > "$dir/cgroup.subtree_control"
    mkdir -p "$dir/$name"
    for file in cpuset.cpus cpuset.mems; do
      [ "$type" = cgroup ] && [ -e "$dir/$file" ] && cat "$dir/$file" > "$dir/$name/$file"
    done
    echo $$ > "$dir/$name/cgroup.procs"
  done <<< "$hierarchies"
  exec unshare --pid --fork --kill-child --mount --propagation private --uts --ipc --net --cgroup "$0" "$root" "$name" "$boot" inside
}

inside() {
  hostname "$name"
  mount --bind "$root" "$root"
  cd "$root"
  mount -t proc proc proc
  mount -t sysfs sysfs sys
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  while read -r dir type options; do
    mkdir -p ".$dir"
    case $options in
      *name=systemd*) mount -t cgroup -o none,name=systemd systemd ".$dir" ;;
      *) if [ "$type" = cgroup2 ]; then mount -t cgroup2 cgroup2 ".$dir"; else mount -t cgroup -o "${options##*,}" cgroup ".$dir"; fi ;;
    esac
  done <<< "$hierarchies"
  for dir in run tmp; do mount -t tmpfs -o mode=1777 tmpfs $dir; done
  chmod 755 run
  devices
  # What the kernel keeps once for all machines on it is not for this one; its network is its own.
  mount --bind proc/sys/net proc/sys/net
  mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
  # Each life of the machine has an id of its own. It is not in the place of the kernel's: units with a /proc of their own see that one.
  mkdir -p etc/systemd/system.conf.d
  printf '[Manager]\nDefaultEnvironment=STADDLE_BOOT_ID=%s\n' "$boot" > etc/systemd/system.conf.d/boot.conf
  mkdir -p .old
  pivot_root . .old
  umount -l /.old
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test /sbin/init
}

devices() {
  mount -t tmpfs -o mode=755 tmpfs dev
  mkdir dev/pts dev/shm
  for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229"; do
    # shellcheck disable=SC2086 # three words
    set -- $node
    mknod -m 666 "dev/$1" c "$2" "$3"
  done
  mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
  mount -t tmpfs -o mode=1777 tmpfs dev/shm
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
}

"${4:-outside}"
