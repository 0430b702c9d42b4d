#!/usr/bin/env bash
# Makes what the machine under test boots from: a kernel, an initial file system and a disk with Debian and systemd, in a folder that is
# kept and used again. Prints its path. What is needed to make it and missing here is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=trixie
packages=systemd,systemd-sysv,dbus,udev,kmod,nftables,iproute2,procps,busybox-static
image=linux-image-cloud-amd64
# What the kernel needs before it has a root file system; the rest is loaded on the machine when it is asked for.
modules=(virtio_pci virtio_blk virtio_console ext4)
cache=${STADDLE_CACHE:-$PWD/.cache}
key=$({ echo "$suite $packages $image"; cat e2e/vm/build.sh e2e/vm/guest/*; } | sha256sum | cut -c1-12)
made=$cache/vm-$key

tools() {
  local missing=() name
  for name in debootstrap:debootstrap cpio:cpio mke2fs:e2fsprogs qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils; do
    command -v "${name%:*}" >/dev/null || missing+=("${name#*:}")
  done
  ((${#missing[@]} == 0)) || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; }
}

debian() { # a root with the kernel's files, which need no installation
  local mirror
  # The same mirror as this machine's own, where that can be told.
  mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | sed -n 's/^URIs: *//p; s/^deb \(\[.*\] \)\?\(http[^ ]*\).*/\2/p' | sed -n 1p) || true
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"}
  chroot "$root" sh -ec 'apt-get update -q
    apt-get download "$(apt-cache depends --important '$image' | sed -n "s/.*Depends: \(linux-image-[^ ]*\)/\1/p")"
    dpkg-deb -x linux-image-*.deb kernel && rm linux-image-*.deb'
  mv "$root"/kernel/boot/vmlinuz-* "$new/vmlinuz"
  version=$(ls "$root"/kernel/*/modules "$root"/kernel/*/*/modules 2>/dev/null | grep '^[0-9]')
  mkdir -p "$root/usr/lib/modules"
  mv "$(find "$root/kernel" -type d -path "*/modules/$version")" "$root/usr/lib/modules/"
  chroot "$root" depmod "$version"
  rm -rf "$root"/kernel "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}
}

initial() { # busybox, the few modules, and a script
  local dir=$work/initial name path
  mkdir -p "$dir"/{bin,dev,proc,sys,mnt}
  cp "$root/usr/bin/busybox" "$dir/bin/busybox"
  install -m 755 e2e/vm/guest/init "$dir/init"
  for name in "${modules[@]}"; do chroot "$root" modprobe --set-version "$version" --show-depends "$name"; done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' |
    while read -r path; do
      case $path in
        *.xz) xz -dc "$root$path" ;;
        *.zst) zstd -dc "$root$path" ;;
        *) cat "$root$path" ;;
      esac > "$dir/$(basename "${path%.ko*}").ko"
      echo "$(basename "${path%.ko*}").ko" >> "$dir/modules"
    done
  (cd "$dir" && find . | cpio --quiet -o -H newc | gzip -1) > "$new/initrd"
}

system() { # how the machine behaves
  chmod 755 "$root"
  echo node1 > "$root/etc/hostname"
  : > "$root/etc/machine-id"
  : > "$root/etc/fstab" # both disks are mounted when systemd starts
  mkdir -p "$root/var/log/journal" "$root/usr/lib/vm" # its journal is to outlive a boot
  install -m 755 e2e/vm/guest/agent "$root/usr/lib/vm/agent"
  install -m 644 e2e/vm/guest/agent.service "$root/etc/systemd/system/agent.service"
  chroot "$root" systemctl --quiet enable agent.service
  chroot "$root" systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p' > "$new/systemd-version"
  # Nobody logs in, and nothing here is to happen by the clock.
  chroot "$root" systemctl --quiet mask getty.target serial-getty@ttyS0.service getty@tty1.service systemd-networkd.service apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer fstrim.timer e2scrub_all.timer systemd-tmpfiles-clean.timer
}

tools >&2
mkdir -p "$cache"
exec 9> "$made.lock" && flock 9 # one makes it, others wait
if [ ! -e "$made" ]; then
  work=$(mktemp -d /var/tmp/staddle-vm-XXXXXX)
  trap 'rm -rf "$work"' EXIT
  root=$work/root new=$work/new version=
  mkdir "$root" "$new"
  {
    echo "making the machine under test (minutes, once)"
    debian && initial && system
    mke2fs -q -t ext4 -L root -d "$root" "$new/root.img" 4G
  } >&2
  rm -rf "$made.new" && cp -r --sparse=always "$new" "$made.new" && mv "$made.new" "$made"
fi
echo "$made"
