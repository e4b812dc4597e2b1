#!/usr/bin/env bash
# Submit a job, with the site's settings of scripts/cluster.env.
#
#   bash scripts/submit.sh [--help] [--dry-run] [sbatch options] train EXAMPLE [hydra overrides]
#   ... train METHOD --model NAME --data NAME [hydra overrides]
#   bash scripts/submit.sh [--dry-run] [sbatch options] sweep RUN_FOLDER [options of eval.sweep]
#   ... rephrase QUESTIONS.parquet OUT.parquet [options of prompt_aug.rephrase]
#   ... doctor [EXAMPLE] [hydra overrides]
#
# --dry-run shows the sbatch line and the commands that the job would run, and starts nothing. A
# training that the checks of `recipe.train --dry-run` refuse is not submitted. With --dependency=...
# they are left to the job, since an earlier job may make its data.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=()
dry=false
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' scripts/submit.sh
    exit 0
fi
while [[ ${1:-} == -* ]]; do
    if [[ $1 == --dry-run ]]; then dry=true; else options+=("$1"); fi
    shift
done
job=${1:-}
if [[ -z $job || ! -f scripts/$job.sbatch ]]; then
    echo "name a job: $(cd scripts && echo *.sbatch | sed 's/\.sbatch//g'); options before it" \
        "take the form --name=value" >&2
    exit 1
fi
shift

source scripts/job.sh
site_settings
if [[ -z ${RECIPE_RUNNER:-} ]] && ! imports_recipe; then
    echo "${python[*]} cannot import recipe: set RECIPE_VENV in scripts/cluster.env. If that" \
        "folder is on compute nodes only: sbatch scripts/$job.sbatch ..." >&2
    exit 1
fi
line=(sbatch ${options[@]+"${options[@]}"} "scripts/$job.sbatch" "$@")
commands=$( # fails if the checks refuse a training
    default=$(sed -n 's/^#SBATCH --gpus-per-node=//p' "scripts/$job.sbatch")
    export CHECK=1 GPUS_PER_NODE=${GPUS_PER_NODE:-${SBATCH_GPUS_PER_NODE:-$default}}
    unset SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_GPUS_ON_NODE # of an allocation that it is called in
    for option in ${options[@]+"${options[@]}"}; do
        case $option in
            --nodes=* | -N*) SLURM_JOB_NUM_NODES=${option#*[=N]} ;;
            --dependency=* | -d*) unset CHECK ;;
            --gpus-per-node=* | --gres=gpu:*) GPUS_PER_NODE=${option#*=} ;;
        esac
    done
    export SLURM_JOB_NUM_NODES=${SLURM_JOB_NUM_NODES:-1}
    SLURM_JOB_NUM_NODES=${SLURM_JOB_NUM_NODES%%-*} # of 1-2
    GPUS_PER_NODE=${GPUS_PER_NODE%%,*} # of gpu:h100:4,ssd:1
    GPUS_PER_NODE=${GPUS_PER_NODE##*:}
    # This node need not have the GPUs of the job's.
    if [[ $GPUS_PER_NODE != 0 ]]; then export RECIPE_MACHINE=${RECIPE_MACHINE:-gpu}; fi
    DRY_RUN=1 SLURM_SUBMIT_DIR=$PWD bash "scripts/$job.sbatch" "$@"
)
if $dry; then
    printf '%q ' "${line[@]}"
    printf '\n%s\n' "$commands"
else
    command -v sbatch >/dev/null || {
        echo "no sbatch here: this is not a SLURM login node" >&2
        exit 1
    }
    "${line[@]}"
fi
