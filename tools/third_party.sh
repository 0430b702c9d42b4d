#!/usr/bin/env bash
# Copies the contract files that ours import from the module cache into third_party/, at the versions pinned in tools/go.mod.
set -euo pipefail
cd "$(dirname "$0")"
export GOWORK=off
dir=$(go mod download -json github.com/bufbuild/protovalidate | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
mkdir -p ../third_party/buf/validate
install -m 0644 "$dir/proto/protovalidate/buf/validate/validate.proto" ../third_party/buf/validate/validate.proto
