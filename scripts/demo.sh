#!/usr/bin/env bash
# The quick start, on a CPU: train a toy model under prompt augmentation, convert, evaluate and
# report. After an interruption, run it again to resume. After a success, another run
# does nothing.
#
#   bash scripts/demo.sh [--help] [hydra overrides]
#   SEED=1 RUN=runs/demo-1 bash scripts/demo.sh
#   bash scripts/demo.sh trainer.total_training_steps=8
#
# About 5 minutes on 2 CPU cores, after the set-up of the first call (scripts/setup.sh).
#
# SEED  seed of draws, order and sampling                (default: 0)
# RUN   the run folder, relative to the repository root  (default: runs/demo)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for argument in "$@"; do
    case $argument in
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/demo.sh
            exit 0
            ;;
        *=*) ;;
        *)
            echo "demo: '$argument' is not an override of the form key=value (see --help)" >&2
            exit 2
            ;;
    esac
done

seed=${SEED:-0}
run=${RUN:-runs/demo}
bash scripts/setup.sh
python=${RECIPE_VENV:-.venv}/bin/python

stage() {
    printf '\n== %s\n' "$1"
    shift
    "$python" -m "$@"
}

stage "train ($run, seed $seed)" recipe.train toy "recipe.run_dir=$run" "recipe.seed=$seed" "$@"
stage "convert the checkpoints" recipe.export "$run"
stage "evaluate them" eval.sweep "$run"
stage "report" eval.report "$run"
