#!/usr/bin/env bash
# Names everything that this machine lacks to build Staddle, with the one command that installs it.
set -euo pipefail
missing=() packages=()
need() { # command or pkg-config module, Debian package
  if [[ $1 == pkg:* ]]; then pkg-config --exists "${1#pkg:}" 2>/dev/null && return; else command -v "$1" >/dev/null && return; fi
  missing+=("${1#pkg:}") packages+=("$2")
}
need go golang
need git git
need gcc gcc
need pkg-config pkg-config
need pkg:libseccomp libseccomp-dev
if ((${#missing[@]})); then
  echo "missing to build Staddle: ${missing[*]}" >&2
  echo "install it with: ${SUDO_HINT:-$([ "$(id -u)" = 0 ] || echo 'sudo ')}apt-get install -y --no-install-recommends ${packages[*]}" >&2
  exit 2
fi
have=$(go env GOVERSION)
if [ "$(printf '%s\n' go1.26.7 "$have" | sort -V | head -1)" != go1.26.7 ] && [ "$(go env GOTOOLCHAIN)" = local ]; then
  echo "go is $have; Staddle needs go1.26.7 or newer" >&2
  exit 2
fi
