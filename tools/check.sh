#!/usr/bin/env bash
# What CI runs: fresh generated code, contracts that break nobody, lint, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n=== %s (%s)\n' "$1" "$(date +%T)"; }

step "generated code is fresh"
make --no-print-directory gen
if [ -n "$(git status --porcelain proto)" ]; then git status --short proto; echo "run make gen and commit the result"; exit 1; fi

step "contracts break nobody"
# Against the state before this one: the parent of HEAD, or the branch that a checkout of a change can name.
base=${STADDLE_BREAKING_BASE:-HEAD~1}
if git rev-parse --verify -q "$base^{commit}" >/dev/null && git cat-file -e "$base:proto" 2>/dev/null; then
  old=$(mktemp -d)
  trap 'rm -rf "$old"' EXIT
  git archive "$base" proto | tar -x -C "$old"
  mkdir -p "$old/third_party" && cp -r third_party/. "$old/third_party/" && cp buf.yaml "$old/"
  buf=$PWD/bin/buf
  (cd "$old" && "$buf" build proto -o before.binpb)
  "$buf" breaking proto --against "$old/before.binpb"
else
  echo "nothing to compare with: $base is not in this checkout"
fi

step "lint"
make --no-print-directory lint

step "tests"
make --no-print-directory test
