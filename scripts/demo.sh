#!/usr/bin/env bash
# The quick start, on a CPU: build the toy world, train on it under prompt augmentation, convert,
# evaluate and report. Killed anywhere and called again, it continues; called after it succeeded,
# it finds nothing left to do.
#
#   bash scripts/demo.sh [--help] [hydra overrides]
#   SEED=1 RUN=runs/demo-1 bash scripts/demo.sh
#   bash scripts/demo.sh trainer.total_training_steps=8
#
# About 5 minutes on 2 CPU cores, after the set-up of the first call (scripts/setup.sh). A seed other
# than 0 teaches its own start model first.
#
# SEED  seed of data, draws, start model and sampling    (default: 0)
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
mkdir -p "$run"

# What the run's work left: unchanged at the end means that this call had nothing to do.
work() {
    find "$run" \( -name metrics.jsonl -o -name manifest.json -o -name scores.json \) \
        -exec cksum {} + 2>/dev/null | sort
}

# Seconds over all calls so far, without the set-up; kept up to date so that a kill loses 5 at most.
before=$(cat "$run/.seconds" 2>/dev/null || echo 0)
found=$(work)
SECONDS=0
clock() {
    echo $((before + SECONDS)) >"$run/.seconds.tmp"
    mv "$run/.seconds.tmp" "$run/.seconds"
}
(while sleep 5 && kill -0 $$ 2>/dev/null; do clock; done) >/dev/null 2>&1 &
ticker=$!
stop_clock() {
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
}
trap stop_clock EXIT

stage() {
    printf '\n== %s\n' "$1"
    shift
    "$python" -m "$@"
}

stage "train ($run, seed $seed)" recipe.train toy "recipe.run_dir=$run" "recipe.seed=$seed" "$@"
stage "convert the checkpoints" recipe.export "$run"
stage "evaluate them" eval.sweep "$run"

stop_clock
if [[ $(work) == "$found" ]]; then
    echo "$before" >"$run/.seconds"
else
    clock
    printf '{"wall_seconds": %s}\n' "$(<"$run/.seconds")" >"$run/timing.json.tmp"
    mv "$run/timing.json.tmp" "$run/timing.json"
fi
stage "report" eval.report "$run"
