#!/usr/bin/env bash
# Takes the development stack down: containers with everything in them, and the network. Its data stays in volumes, unless --volumes
# is given. Safe when nothing runs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
volumes=()
case ${1:-} in
  "") ;;
  --volumes) volumes=(--volumes) ;;
  *) die "$1 is unknown" "$0 [--volumes]" ;;
esac
check_daemon
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compose down --remove-orphans "${volumes[@]}" >"$log" 2>&1 || { cat "$log" >&2; die "the stack is not down, see above" "$0 again; what is gone stays gone"; }

# What docker itself says is left: a failed question is no "nothing".
left=$(mine container -a && mine network)
[ -z "$left" ] || die "still there: $left" "$0 again"
kept=$(mine volume)
if ((${#volumes[@]})); then
  [ -z "$kept" ] || die "volumes are still there: $kept" "$0 --volumes again"
  rm -rf "$operator"
  say "nothing of the stack is left; its images stay for the next time"
else
  say "nothing of the stack runs${kept:+; data stays in volumes: ${kept//$'\n'/ }}"
fi
