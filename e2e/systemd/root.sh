#!/usr/bin/env bash
# Makes the root file system of the machine under test: Debian with systemd, as an archive that is kept and used again. Prints its
# path. What is needed to make it and missing here is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=bookworm
packages=systemd,systemd-sysv,dbus,nftables,iproute2
cache=${STADDLE_CACHE:-$PWD/.cache}
archive=$cache/systemd-root-$(echo "$suite $packages" | sha256sum | cut -c1-12).tar
if [ ! -e "$archive" ]; then
  if ! command -v debootstrap >/dev/null; then
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap; } >&2
  fi
  mkdir -p "$cache"
  root=$(mktemp -d /var/tmp/staddle-root-XXXXXX)
  trap 'rm -rf "$root"' EXIT
  # The same mirror as this machine's own, where that can be told.
  mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | sed -n 's/^URIs: *//p; s/^deb \(\[.*\] \)\?\(http[^ ]*\).*/\2/p' | sed -n 1p) || true
  echo "making the root of the machine under test (a minute, once)" >&2
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"} >&2
  chmod 755 "$root"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar -C "$root" --numeric-owner -cf "$archive.new" .
  mv "$archive.new" "$archive"
fi
echo "$archive"
