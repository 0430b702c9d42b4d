#!/usr/bin/env bash
# Runs all tests with the race detector, module by module, the end-to-end tests last. Needs root: containers, mounts and
# namespaces are real. Nothing is taken from an earlier run: Go does not see that a binary was built anew. Arguments go to `go test`.
#
# A test that fails is repeated once by itself, and named at the end either way: one that fails only sometimes is a fault to be
# found, but not of the change that happened to meet it.
set -uo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "the tests make containers and network namespaces: run them with make test, as root or with sudo" >&2; exit 2; }
export BINARIES_UNDER_TEST=$PWD/bin
failed=() unsteady=()
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# judge reads what tests printed that failed, and repeats those that have names.
judge() { # name, output, how to run tests of given names
  local name=$1 out=$2 names
  shift 2
  names=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\).*/\1/p' "$out" | sort -u | paste -sd '|')
  # Without a name something else is wrong: it does not compile, a program panicked, time ran out.
  if [ -z "$names" ] || grep -qE '^(panic:|FAIL.*\[(build|setup) failed\])' "$out"; then failed+=("$name"); return; fi
  echo "== $name, once more: $names"
  if "$@" "^($names)\$" 2>&1 | tee "$dir/again"; then unsteady+=("$name: $names"); return; fi
  local again
  again=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\).*/\1/p' "$dir/again" | sort -u | paste -sd '|')
  failed+=("$name: ${again:-$names}")
  names=$(tr '|' '\n' <<<"$names" | grep -vxE "${again:-.*}" | paste -sd '|')
  [ -z "$names" ] || unsteady+=("$name: $names")
}

tests() { # module, time limit, further arguments, of them the last one the names
  local module=$1 limit=$2
  shift 2
  (cd "$module" && go test -race -count=1 -timeout "$limit" "${@:1:$#-1}" -run "${!#}" ./...)
}

run() { # module, time limit, further arguments
  echo "== $1"
  (cd "$1" && go test -race -count=1 -timeout "$2" "${@:3}" ./...) 2>&1 | tee "$dir/out" || judge "$1" "$dir/out" tests "$@"
}

half() { (cd e2e && "$dir/e2e.test" -test.timeout 40m -test.run "$1"); }

# The tests from end to end mostly wait: half of them run beside the other half, each on a node of its own.
halves() {
  local i names halves=()
  echo "== e2e"
  (cd e2e && go test -race -c -o "$dir/e2e.test" .) && names=$(cd e2e && "$dir/e2e.test" -test.list .) || { failed+=("e2e"); return; }
  for i in 0 1; do
    half "^($(awk -v i=$i '/^Test/ && NR % 2 == i' <<<"$names" | paste -sd '|'))\$" >"$dir/half$i" 2>&1 &
    halves+=($!)
  done
  for i in 0 1; do
    wait "${halves[$i]}" && { tail -1 "$dir/half$i"; continue; }
    cat "$dir/half$i"
    judge e2e "$dir/half$i" half
  done
  (cd e2e && go test -race -count=1 -p 1 $(go list ./... | tail -n +2)) || failed+=("e2e, its parts")
}

for module in $(sed -n 's,^\t\./,,p' go.work); do
  case $module in proto | e2e) continue ;; esac
  run "$module" 15m "$@"
done
if (($# == 0)); then # without the race detector, which makes a search many times slower and finds nothing in it
  echo "== every state of every plan of four components"
  (cd services/supervisor && go test -count=1 -timeout 15m -run EveryReachableState ./internal/machine -search four) || failed+=("services/supervisor: TestStep_EveryReachableState -search four")
  halves
else
  run e2e 40m -p 1 "$@"
fi
for test in "${unsteady[@]}"; do echo "UNSTEADY, failed once and passed when repeated: $test"; done
if ((${#failed[@]})); then printf 'tests failed in: %s\n' "${failed[@]}"; exit 1; fi
echo "all tests passed"
