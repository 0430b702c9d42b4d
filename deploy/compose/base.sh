#!/usr/bin/env bash
# Makes the image on which the stack's images are built, from Debian's packages: no registry of images is needed. What was made before
# is used again. Prints its name.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
name=$(base_name)
if docker image inspect "$name" >/dev/null 2>&1; then echo "$name"; exit; fi
say "making the base image from packages of Debian $suite (a minute or two, once)" >&2
mkdir -p "$tree/.cache"
work=$(mktemp -d "$tree/.cache/base-XXXXXX")
trap '$sudo rm -rf "$work"' EXIT
PATH=$PATH:/usr/sbin
# On a Debian its own mirror: it may be the only one that is reached.
mirror=
if (. /etc/os-release && [ "$ID" = debian ]) 2>/dev/null; then
  mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null |
    sed -nE 's/^URIs: *([^ ]*).*/\1/p; s/^deb (\[[^]]*\] )?(http[^ ]*) .*/\2/p' | head -n 1) || true
fi
$sudo env "PATH=$PATH" debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" ${mirror:+"$mirror"} >"$work/log" 2>&1 ||
  { tail -5 "$work/log" >&2; die "debootstrap failed, see above" "BASE_IMAGE=debian:$suite make compose-up, which asks a registry"; }
$sudo tar -C "$work/root" --exclude=./var/cache/apt/archives/*.deb --exclude=./var/lib/apt/lists/* -c . | docker import - "$name" >/dev/null
docker tag "$name" staddle-base # what compose.yaml names where nobody says another
echo "$name"
