#!/usr/bin/env bash
# Tests the development stack in a project of its own, so that one that somebody works with is not touched. Arguments go to "go test".
set -euo pipefail
export COMPOSE_PROJECT_NAME=staddle-test COORDINATOR_PORT=${COORDINATOR_PORT:-18444}
. "$(dirname "$0")/lib.sh"
check_tools
cd "$tree/e2e"
exec go test -tags compose -count=1 -timeout 15m -v "$@" ./compose
