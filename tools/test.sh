#!/usr/bin/env bash
# Runs all tests with the race detector, module by module, the end-to-end tests last. Needs root: containers, mounts and
# namespaces are real. Nothing is taken from an earlier run: Go does not see that a binary was built anew. Arguments go to `go test`.
set -uo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "the tests make containers and network namespaces: run them with make test, as root or with sudo" >&2; exit 2; }
export BINARIES_UNDER_TEST=$PWD/bin
failed=()
for module in $(sed -n 's,^\t\./,,p' go.work); do
  case $module in proto | e2e) continue ;; esac
  echo "== $module"
  (cd "$module" && go test -race -count=1 -timeout 15m "$@" ./...) || failed+=("$module")
done
echo "== e2e"
(cd e2e && go test -race -count=1 -timeout 30m -p 1 "$@" ./...) || failed+=(e2e)
if ((${#failed[@]})); then echo "tests failed in: ${failed[*]}"; exit 1; fi
echo "all tests passed"
