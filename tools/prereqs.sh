#!/usr/bin/env bash
# Names everything that this machine lacks to build Staddle, with the one command that installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=go$(sed -n 's/^go //p' go.work)
missing=() packages=()
need() { # what it is, Debian package, command that succeeds if it is there
  "${@:3}" >/dev/null 2>&1 </dev/null || { missing+=("$1") packages+=("$2"); }
}
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; }
need git git command -v git
need gcc gcc command -v gcc
need "C headers" libc6-dev test -e /usr/include/stdlib.h
need pkg-config pkg-config command -v pkg-config
need libseccomp libseccomp-dev pkg-config --exists libseccomp
if ((${#missing[@]})); then
  (IFS=, && echo "missing to build Staddle: ${missing[*]}") | sed 's/,/, /g' >&2
  echo "install it with: $([ "$(id -u)" = 0 ] || echo 'sudo ')apt-get install -y --no-install-recommends ${packages[*]}" >&2
fi
remedy=
if ! have=$(cd / && GOTOOLCHAIN=local go env GOVERSION 2>/dev/null); then
  have="not on the PATH" remedy="install it from https://go.dev/dl/"
  [ ! -x /usr/local/go/bin/go ] || remedy='export PATH=/usr/local/go/bin:$PATH'
elif older "$have" go1.21; then # it cannot fetch a newer one by itself
  remedy="install it from https://go.dev/dl/"
elif older "$have" "$wanted" && [ "$(cd / && go env GOTOOLCHAIN)" = local ]; then
  remedy="go env -w GOTOOLCHAIN=auto, and it fetches that one by itself"
fi
[ -z "$remedy" ] || printf 'go is %s; Staddle needs %s or newer\ntry: %s\n' "$have" "$wanted" "$remedy" >&2
((${#missing[@]} == 0)) && [ -z "$remedy" ] || exit 2
