#!/usr/bin/env bash
# Every check of the project: lint, format, types; unit, config and end-to-end tests.
#
#   bash scripts/test.sh [--help] [--fast] [pytest options]
#   bash scripts/test.sh --fast -k grading
#
# --fast    lint, format, types and unit tests alone
#
# unit      composes the toy example at most, starts small processes at most: about a minute
# config    composes configurations, starts short processes, no Ray and no engine
# e2e       starts Ray or an engine: real trainings, evaluations, exports
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/test.sh
    exit 0
fi
fast=false
if [[ ${1:-} == --fast ]]; then
    fast=true
    shift
fi
bash scripts/setup.sh || exit 1
bin=${RECIPE_VENV:-.venv}/bin
failed=() took=()

# All stages run even after a failure, so that one call shows everything there is to fix.
stage() {
    local name=$1 began=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
    took+=("$name $((SECONDS - began)) s")
}

stage "lint" "$bin/python" -m ruff check .
stage "format" "$bin/python" -m ruff format --check .
stage "types" "$bin/python" -m mypy
# By file, so that what the tests of one share is made once, and in the order of tests/conftest.py,
# the longest files first; xdist would begin with those that have most tests.
two=(-n 2 --dist loadfile --no-loadscope-reorder)
stage "unit tests" "$bin/python" -m pytest "${two[@]}" -m "not config and not e2e" "$@"
if ! $fast; then
    stage "config tests" "$bin/python" -m pytest "${two[@]}" -m config "$@"
    # A training holds up to 7 GiB. Two at a time have one thread each: two that wait for each other's
    # threads by spinning are slower than one after the other.
    room=$("$bin/python" -c 'import psutil
from recipe.machine.host import memory_limit
print(int(min(psutil.virtual_memory().available, memory_limit()) / 2**30))')
    if ((room >= 16)); then
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    else
        two=(-n 0)
    fi
    stage "end-to-end tests" "$bin/python" -m pytest "${two[@]}" -m e2e "$@"
fi

printf '\ntook:'
printf ' [%s]' "${took[@]}"
printf '\n'
if ((${#failed[@]})); then
    printf 'failed:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    exit 1
fi
