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
out=$(mktemp)
trap 'rm -f "$out"' EXIT
run() { # module, time limit, further arguments
  local module=$1 limit=$2 names
  shift 2
  echo "== $module"
  (cd "$module" && go test -race -count=1 -timeout "$limit" "$@" ./...) 2>&1 | tee "$out" && return
  names=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\).*/\1/p' "$out" | sort -u | paste -sd '|')
  # Without a name something else is wrong: it does not compile, a program panicked, time ran out.
  if [ -z "$names" ] || grep -qE '^(panic:|FAIL.*\[(build|setup) failed\])' "$out"; then failed+=("$module"); return; fi
  echo "== $module, once more: $names"
  if (cd "$module" && go test -race -count=1 -timeout "$limit" "$@" -run "^($names)\$" ./...); then unsteady+=("$module: $names"); else failed+=("$module: $names"); fi
}
for module in $(sed -n 's,^\t\./,,p' go.work); do
  case $module in proto | e2e) continue ;; esac
  run "$module" 15m "$@"
done
if (($# == 0)); then # without the race detector, which makes a search many times slower and finds nothing in it
  echo "== every state of every plan of four components"
  (cd services/supervisor && go test -count=1 -timeout 15m -run EveryReachableState ./internal/machine -search four) || failed+=("services/supervisor: TestStep_EveryReachableState -search four")
fi
run e2e 40m -p 1 "$@"
for test in "${unsteady[@]}"; do echo "UNSTEADY, failed once and passed when repeated: $test"; done
if ((${#failed[@]})); then printf 'tests failed in: %s\n' "${failed[@]}"; exit 1; fi
echo "all tests passed"
