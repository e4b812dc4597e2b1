#!/usr/bin/env bash
# A pretrained model on public word problems, on a CPU: SmolLM2-135M-Instruct, warm start, training,
# export, evaluation, report. After an interruption, run it again to resume.
#
#   bash scripts/smollm2.sh [--help] [METHOD] [hydra overrides]
#   bash scripts/smollm2.sh cw_grpo trainer.total_training_steps=60
#
# METHOD     a method of examples/README.md, or `start`: only questions and warm start
#                                                             (default: prompt_aug)
# SVAMP      a clone of https://github.com/arkilpatel/SVAMP   (default: cloned to data/SVAMP)
# PARAMAWPS  a clone of https://github.com/Starscream-11813/Variational-Mathematical-Reasoning,
#            whose rewordings para*.parquet have              (default: none, and no such files)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/smollm2.sh
    exit 0
fi
method=prompt_aug
if [[ ${1:-} && ($1 != *=* || $1 == method=*) ]]; then
    method=${1#method=}
    shift
fi
for override in "$@"; do
    if [[ $override == method=* || $override == recipe.run_dir=* ]]; then
        echo "$override: the METHOD comes first, and its run folder is runs/smollm2_METHOD. Leave it out." >&2
        exit 2
    fi
done
[[ -n ${RECIPE_PYTHON:-} ]] || bash scripts/setup.sh
python=${RECIPE_PYTHON:-${RECIPE_VENV:-.venv}/bin/python} # of an environment that is made
svamp=${SVAMP:-data/SVAMP}
data=data/smollm2
run=runs/smollm2_$method

stage() {
    printf '\n== %s\n' "$1"
    shift
    "$@"
}
# A folder appears under its name only when it is whole.
made() { # FOLDER COMMAND ...
    local folder=$1
    shift
    [[ ! -e $folder ]] || return 0
    rm -rf "$folder.part"
    stage "$folder" "$@" "$folder.part"
    mv "$folder.part" "$folder"
}
warm_start() { # verl's own SFT trainer: 26 updates of 16 worked answers, 5 to 10 minutes on two cores
    local cores numbers # of the matrix products: many processors multiply bfloat16 8 to 37 times slower
    read -r cores numbers < <("$python" -c 'from recipe.machine import host
print(host.cores(), "bf16" if host.multiplies_bfloat16() else "fp32")')
    rm -rf "$1.sft"
    env VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=recipe.plugin,recipe.patches.cpu.engines \
        GLOO_SOCKET_IFNAME=lo GOMP_SPINCOUNT=10000 TORCH_COMPILE_DISABLE=1 \
        OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cores}" \
        "$python" -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=1 \
        -m verl.trainer.sft_trainer \
        data.train_files="$data/solved.parquet" data.train_batch_size=16 \
        data.micro_batch_size_per_gpu=16 data.use_dynamic_bsz=False data.max_length=512 \
        data.num_workers=0 model.path=models/smollm2 model.use_remove_padding=False \
        model.enable_gradient_checkpointing=False \
        model.external_lib=recipe.patches.cpu.engines \
        +model.override_config.attn_implementation=sdpa engine.strategy=fsdp2 \
        engine.model_dtype=float32 engine.use_torch_compile=False \
        "+engine.mixed_precision={param_dtype: $numbers, reduce_dtype: fp32, buffer_dtype: fp32}" \
        optim.lr=1e-4 \
        optim.lr_warmup_steps=5 optim.weight_decay=0.0 trainer.device=cpu \
        trainer.n_gpus_per_node=1 'trainer.logger=[console]' trainer.total_epochs=1 \
        trainer.total_training_steps=26 trainer.save_freq=26 'checkpoint.save_contents=[model,optimizer,extra,hf_model]' \
        trainer.default_local_dir="$1.sft"
    mv "$1.sft"/global_step_*/huggingface "$1"
    rm -rf "$1.sft"
}

mkdir -p data models
exec 8>>data/.smollm2.lock # a second command waits for what the first one makes
flock -n 8 || {
    (($? == 1)) || exit 1 # not held: this file system has no locks, as flock says
    echo "another smollm2.sh makes questions or start model: waiting for it" >&2
    flock 8
}
if [[ ! -e $svamp/SVAMP.json ]]; then
    stage "questions" git clone --depth 1 https://github.com/arkilpatel/SVAMP "$svamp"
fi
questions() { # FOLDER
    "$python" scripts/smollm2.py data "$1" "$svamp" ${PARAMAWPS:+"$PARAMAWPS"}
    "$python" scripts/smollm2.py solved "$1" "$svamp"
}
made "$data" questions
made models/smollm2 "$python" scripts/smollm2.py model
made models/smollm2-warm warm_start
exec 8>&-
[[ $method != start ]] || exit 0

more=()
[[ $method != ta_grpo ]] || more=(recipe.rephrasings.count=1)
stage "train ($run)" "$python" -m recipe.train smollm2 "method=$method" "${more[@]}" \
    "$@" "recipe.run_dir=$run"
stage "convert the checkpoints" "$python" -m recipe.export "$run"
stage "evaluate them" "$python" -m eval.sweep "$run"
stage "report" "$python" -m eval.report "$run"
