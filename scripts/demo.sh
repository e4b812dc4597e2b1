#!/usr/bin/env bash
# The quick start, on a CPU: train a toy model under prompt augmentation, convert, evaluate and
# report. After an interruption, run it again to resume. After a success, another run
# does nothing.
#
#   bash scripts/demo.sh [--help] [hydra overrides]
#   RUN=runs/demo-1 bash scripts/demo.sh recipe.seed=1
#
# About 5 minutes on 2 CPU cores, after the set-up of the first call (scripts/setup.sh).
#
# RUN   the run folder, relative to the repository root  (default: runs/demo)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/demo.sh
    exit 0
fi
run=${RUN:-runs/demo}
if [[ $* == *recipe.run_dir=* ]]; then
    echo "recipe.run_dir: set RUN=runs/mine, which all stages read, and leave it out." >&2
    exit 2
fi
bash scripts/setup.sh
python=${RECIPE_VENV:-.venv}/bin/python

stage() {
    printf '\n== %s\n' "$1"
    shift
    "$python" -m "$@"
}

stage "train ($run)" recipe.train toy "recipe.run_dir=$run" "$@"
stage "convert the checkpoints" recipe.export "$run"
stage "evaluate them" eval.sweep "$run"
stage "report" eval.report "$run"
