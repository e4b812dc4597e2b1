#!/usr/bin/env bash
# Every check of the project: lint, format, types, unit tests, end-to-end tests.
#
#   bash scripts/test.sh [--fast] [pytest options]      --fast leaves out the end-to-end tests
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

fast=false
if [[ ${1:-} == --fast ]]; then
    fast=true
    shift
fi
bash scripts/setup.sh || exit 1
bin=${RECIPE_VENV:-.venv}/bin
failed=()

# All stages run even after a failure, so that one call shows everything there is to mend.
stage() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

stage "lint" "$bin/python" -m ruff check .
stage "format" "$bin/python" -m ruff format --check .
stage "types" "$bin/python" -m mypy
stage "unit tests" "$bin/python" -m pytest -m "not e2e" "$@"
$fast || stage "end-to-end tests" "$bin/python" -m pytest -m e2e "$@"

if ((${#failed[@]})); then
    printf '\nfailed:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    exit 1
fi
