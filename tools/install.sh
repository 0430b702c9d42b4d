#!/usr/bin/env bash
# Puts Staddle in place for systemd, or takes it away again: install.sh install|uninstall. DESTDIR and PREFIX are from the environment.
# What was made, files and folders, is written down in <prefix>/lib/staddle/installed, and nothing else is taken away.
set -euo pipefail
cd "$(dirname "$0")/.."
PREFIX=${PREFIX:-/usr/local} DESTDIR=${DESTDIR:-}
[[ $PREFIX == /* ]] || { echo "PREFIX is $PREFIX: write an absolute path" >&2; exit 2; }
PREFIX=${PREFIX%/}
# The version of systemd that it is for: a newer one understands more. Packagers name it.
SYSTEMD_VERSION=${SYSTEMD_VERSION:-$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')}
list=$DESTDIR$PREFIX/lib/staddle/installed

# note remembers a path below DESTDIR, once.
note() { grep -qxF -- "$1" "$list" 2>/dev/null || made+=("$1"); }

folder() { # makes a folder and those above it, and remembers which were not there
  local dir=$1
  [ -d "$DESTDIR$dir" ] && return
  [ "$dir" = / ] || folder "$(dirname "$dir")"
  mkdir -m 0755 "$DESTDIR$dir"
  note "$dir/"
}

put() { # mode, source, path: by rename, so that a program that runs keeps its file and no half one is ever started
  folder "$(dirname "$3")"
  sed_or_copy "$2" "$DESTDIR$3.new"
  chmod "$1" "$DESTDIR$3.new"
  mv -f "$DESTDIR$3.new" "$DESTDIR$3"
  note "$3"
}

sed_or_copy() {
  case $1 in
    deploy/systemd/*) sed -e "s|/usr/local/lib/staddle|$PREFIX/lib/staddle|g; s|/usr/local/share|$PREFIX/share|g" "$1" > "$2" ;;
    *) cp -- "$1" "$2" ;;
  esac
}

install_all() {
  made=()
  trap remember EXIT # also of an installation that broke off, so that it can be undone
  for name in staddle staddle-node staddle-init staddle-coordinator containerd containerd-shim-runc-v2 runc; do put 0755 "bin/$name" "$PREFIX/lib/staddle/$name"; done
  folder "$PREFIX/bin"
  ln -sfn ../lib/staddle/staddle "$DESTDIR$PREFIX/bin/staddle" && note "$PREFIX/bin/staddle"
  for unit in deploy/systemd/*.{service,socket,path,target}; do put 0644 "$unit" "$PREFIX/lib/systemd/system/${unit##*/}"; done
  if [ "${SYSTEMD_VERSION:-0}" -ge 254 ]; then
    for dropin in deploy/systemd/254/*/*.conf; do put 0644 "$dropin" "$PREFIX/lib/systemd/system/${dropin#deploy/systemd/254/}"; done
  fi
  for kind in sysusers tmpfiles; do put 0644 "deploy/systemd/$kind.conf" "$PREFIX/lib/$kind.d/staddle.conf"; done
  for name in node.yaml coordinator.yaml; do
    put 0644 "deploy/config/$name" "$PREFIX/share/staddle/$name"
    put 0644 "deploy/systemd/$name" "$PREFIX/share/staddle/systemd/$name"
  done
  put 0644 bin/hello.tar "$PREFIX/share/staddle/hello.tar"
  put 0644 README.md "$PREFIX/share/doc/staddle/README.md"
  put 0644 deploy/systemd/README.md "$PREFIX/share/doc/staddle/systemd.md"
  put 0644 LICENSE "$PREFIX/share/doc/staddle/LICENSE"
  echo "installed below $DESTDIR$PREFIX; go on with $DESTDIR$PREFIX/share/doc/staddle/systemd.md"
}

remember() {
  [ -d "${list%/*}" ] || return 0
  note "$PREFIX/lib/staddle/installed"
  ((${#made[@]} == 0)) || printf '%s\n' "${made[@]}" >> "$list"
}

uninstall_all() {
  [ -e "$list" ] || { echo "nothing to take away: $list does not exist (PREFIX and DESTDIR as at the installation?)" >&2; exit 1; }
  mapfile -t made < "$list"
  for path in "${made[@]}"; do [[ $path == */ ]] || rm -f -- "$DESTDIR$path"; done
  # The innermost folders first; one that somebody else uses by now stays.
  printf '%s\n' "${made[@]}" | grep '/$' | sort -r | while read -r dir; do rmdir --ignore-fail-on-non-empty -- "$DESTDIR$dir" 2>/dev/null || true; done
}

case ${1:-} in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *) echo "usage: $0 install|uninstall" >&2; exit 2 ;;
esac
