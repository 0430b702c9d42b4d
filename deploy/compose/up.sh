#!/usr/bin/env bash
# Builds the images and starts the development stack, or what of it does not run; then a first sandbox for each runner, their pages, and
# what to try.
# A second run changes nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
check_tools
BASE_IMAGE=${BASE_IMAGE:-$("$stack/base.sh")}
export BASE_IMAGE
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say "building the images"
compose build >"$log" 2>&1 || { tail -20 "$log" >&2; die "the images cannot be built, see above"; }
say "starting etcd, the coordinator and the runners, each when what it needs is healthy"
compose up -d --remove-orphans >"$log" 2>&1 || {
  cat "$log" >&2
  for service in etcd coordinator; do compose logs --tail 5 "$service" >&2 || true; done
  grep -q 'port is already allocated\|address already in use' "$log" && die "port $COORDINATOR_PORT is taken" "COORDINATOR_PORT=28443 make compose-up"
  die "the stack does not start, see above" "make compose-down"
}
identity

# until_so LIMIT WHAT COMMAND...: tries once a second, and shows at the end what it saw last.
until_so() {
  local limit=$1 what=$2 seen
  shift 2
  for ((; limit > 0; limit--)); do
    if seen=$("$@" 2>&1); then return; fi
    sleep 1
  done
  die "$what not in time; seen last: $seen" "cd $stack && $(compose_command) logs"
}
# cell COLUMN COMMAND...: what the first row of a table has in that column.
cell() { "${@:2}" | awk -v column="$1" 'NR == 1 {at = index($0, column)} NR == 2 {text = substr($0, at); sub(/ .*/, "", text); print text}'; }
ready() { [ "$(cell READY "$stack/staddle" get node "$1")" = true ] || { "$stack/staddle" get node "$1" && false; }; }
for runner in $(runners); do
  until_so 60 "the processes of $runner are ready" docker exec "$(container "$runner")" staddle status
  until_so 60 "node $runner is ready" ready "$runner"
  docker exec "$(container "$runner")" staddle image import /usr/local/share/staddle/hello.tar >/dev/null
  say "node $runner is ready"
done

# first NAME: makes a sandbox run, unless there is one of that name, and shows its page.
pages=() home=
first() {
  local show=("$stack/staddle" get sandbox "$1") address
  "${show[@]}" >/dev/null 2>&1 || { "$stack/staddle" run -d --name "$1" --memory 64MiB staddle.local/hello:1 >/dev/null && say "created sandbox $1"; }
  running() { [ "$(cell PHASE "${show[@]}")" = RUNNING ] || { "${show[@]}" && false; }; }
  until_so 60 "sandbox $1 runs" running
  home=$(cell NODE "${show[@]}") address=$(cell ADDRESS "${show[@]}")
  [ -n "$(container "$home")" ] || die "sandbox $1 is on node $home, which is not of this stack"
  page() { docker exec "$(container "$home")" curl --silent --show-error --fail --max-time 5 --noproxy '*' "http://$address:8080/"; }
  until_so 30 "sandbox $1 shows its page" page
  pages+=("\$ curl http://$address:8080/        (on $home)" "$(page)" "")
}
# Each goes to the runner that has the fewest.
first hello2
first hello
# Another stack than the usual one has to be named each time.
named=
[ "$COMPOSE_PROJECT_NAME" = staddle ] || named="COMPOSE_PROJECT_NAME=$COMPOSE_PROJECT_NAME "
[ "$COORDINATOR_PORT" = 18443 ] || named+="COORDINATOR_PORT=$COORDINATOR_PORT "
cli=${named}deploy/compose/staddle
printf '\n'
printf '%s\n' "${pages[@]}"
cat <<END
Next:
  $cli ps
  $cli run -d --name web staddle.local/hello:1
  docker exec $(docker inspect -f '{{.Name}}' "$(container "$home")" | tr -d /) staddle status
  ${named}make compose-down               stop it all; data stays, make compose-down VOLUMES=1 removes it
END
