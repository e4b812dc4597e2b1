#!/usr/bin/env bash
# Fifteen minutes on one GPU: what only a GPU can show, the most important first. Each part has a time
# limit. One that succeeds adds a line to OUT/results.txt; the same command runs the others again.
# Without a GPU the parts use small shapes, as a test of this script (8 minutes on two cores).
#
#   bash scripts/gpu.sh [--help] [PART ...]
#
# attention  torch_varlen, sdpa and eager: differences, times of forward and backward
# step       one GRPO step of Qwen2.5-Math-1.5B's shape with random weights: times, MFU, memory
# learn      the toy example's training accuracy
# export     its last checkpoint exported and evaluated, beside the start model
# v1, v2     vLLM's runners: tokens/s of sampling with a seed for each request, 256 at once
# at_once    the same with V1 and 1,024 at once
# compare    GRPO and CW-GRPO with the gradient through w: SmolLM2 if its files are here, else the toy
#
# OUT           folder of results, logs and runs    (default: runs/gpu)
# SECONDS_LEFT  time limit of all parts together    (default: 900)
# PYTHON        of the environment                  (default: python)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

parts=(attention step learn export v1 v2 at_once compare)
declare -A limits=([attention]=60 [step]=400 [learn]=400 [export]=150 [v1]=90 [v2]=90 [at_once]=90
    [compare]=900)
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/gpu.sh
    exit 0
fi
out=${OUT:-runs/gpu}
python=${PYTHON:-python}
gpu=false
"$python" -c 'import sys; from recipe.machine.host import gpus_here; sys.exit(not gpus_here())' && gpu=true
$gpu || out+=-cpu # its lines are not those of a GPU
results=$out/results.txt
model=$out/model

train() { # FOLDER EXAMPLE [override ...]: steps without validation and, by default, checkpoints
    local folder=$1 example=$2
    shift 2
    "$python" -m recipe.train "$example" machine=auto "recipe.run_dir=$folder" \
        trainer.save_freq=-1 trainer.test_freq=-1 trainer.val_before_train=false "$@"
}
engine() { # RUNNER AT_ONCE REQUESTS TOKENS
    $gpu || set -- "$1" 16 16 16
    $gpu || model=examples/toy/start
    VLLM_USE_V2_MODEL_RUNNER=$1 "$python" scripts/gpu.py engine "$model" "${@:2}"
}
random_weights() {
    [[ -e $model ]] && return
    rm -rf "$model.part"
    "$python" scripts/gpu.py model "$model.part" && mv "$model.part" "$model"
}
gpu_only() { $gpu || echo "result: skipped: no GPU"; }

part_attention() { "$python" scripts/gpu.py attention; }
part_step() { # advantages of +1 and -1: random weights have no reward
    local actor=actor_rollout_ref.actor rollout=actor_rollout_ref.rollout
    local given=(recipe.advantage.name=recipe.trial.alternating)
    if $gpu; then
        random_weights || return
        given+=("recipe.model_path=$model" trainer.n_gpus_per_node=1 trainer.total_training_steps=2
            'data.train_files=[examples/toy/train.parquet]' data.train_batch_size=16
            'data.val_files=[examples/toy/validation.parquet]' "$actor.ppo_mini_batch_size=16"
            data.max_prompt_length=512 data.max_response_length=1024 "$rollout.max_model_len=1536")
        train "$out/step" math_methods "${given[@]}" || return
    else
        train "$out/step" toy_methods "${given[@]}" trainer.total_training_steps=1 || return
    fi
    "$python" scripts/gpu.py step "$out/step"
}
part_learn() {
    local steps=24
    $gpu || steps=1
    train "$out/toy" toy trainer.n_gpus_per_node=1 "trainer.total_training_steps=$steps" \
        "trainer.save_freq=$steps" && "$python" scripts/gpu.py learned "$out/toy"
}
part_export() {
    local few=()
    $gpu || few=(--max-questions 16)
    "$python" -m recipe.export "$out/toy" && "$python" -m eval.sweep "$out/toy" "${few[@]}" &&
        "$python" scripts/gpu.py scores "$out/toy"
}
part_v1() { { ! $gpu || random_weights; } && engine 0 256 1024 512; }
part_v2() { if $gpu; then random_weights && engine 1 256 1024 512; else gpu_only; fi; }
part_at_once() { if $gpu; then random_weights && engine 0 1024 1024 512; else gpu_only; fi; }
part_compare() {
    local example=toy_methods steps=60 same=(actor_rollout_ref.actor.ppo_mini_batch_size=4)
    if [[ -d models/smollm2-warm && -d data/smollm2 ]] && $gpu; then
        example=smollm2 steps=40 same=()
    fi
    $gpu || steps=1
    same+=("trainer.total_training_steps=$steps" trainer.n_gpus_per_node=1
        "trainer.save_freq=$((steps > 10 ? 10 : -1))" trainer.max_actor_ckpt_to_keep=1)
    local weights=recipe.weights.gaussian_covariance
    train "$out/grpo" $example method=grpo "${same[@]}" &&
        train "$out/cw_grpo" $example method=cw_grpo "$weights.preset=official_code" \
            "$weights.gradient=through" "${same[@]}" &&
        "$python" scripts/gpu.py learned "$out/grpo" "$out/cw_grpo"
}

if [[ ${1:-} == --one ]]; then # a part by itself, so that `timeout` can end it
    "part_$2"
    exit
fi
(($#)) || set -- "${parts[@]}"
for name in "$@"; do
    [[ ${limits[$name]:-} ]] || { echo "gpu.sh: no part $name. See --help." >&2; exit 2; }
done
mkdir -p "$out"
touch "$results"
has_line() { grep -q "^$1: " "$results"; }
for name in "$@"; do
    has_line "$name" && continue
    limit=$((${SECONDS_LEFT:-900} - SECONDS))
    ((limit > limits[$name])) && limit=${limits[$name]}
    if ((limit < 20)); then
        echo "$name: no time left"
        continue
    fi
    began=$SECONDS
    echo "== $name, at most $limit s (log: $out/$name.log)"
    timeout --kill-after=30 "$limit" bash scripts/gpu.sh --one "$name" >"$out/$name.log" 2>&1
    code=$?
    line=$(sed -n 's/^result: //p' "$out/$name.log" | tail -n 1)
    if ((code)) || [[ -z $line ]]; then
        echo "$name: failed with exit code $code (124: its time limit)"
        continue
    fi
    echo "$name: $line ($((SECONDS - began)) s)" >>"$results"
done
cat "$results"
for name in "$@"; do
    has_line "$name" || exit 1
done
