#!/usr/bin/env bash
# Runs gofmt and the linters of .golangci.yml over every module; prints all findings, then fails if there were any.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
unformatted=$(git ls-files '*.go' | grep -v '^proto/gen/' | xargs gofmt -l)
if [ -n "$unformatted" ]; then printf 'not formatted (make fmt):\n%s\n' "$unformatted"; status=1; fi
for module in $(sed -n 's,^\t\./,,p' go.work); do
  [ "$module" = proto ] && continue
  (cd "$module" && bin=../bin && while [ ! -d "$bin" ]; do bin=../$bin; done && "$bin/golangci-lint" run --allow-parallel-runners ./...) || { echo "lint: $module"; status=1; }
done
exit $status
