# shellcheck shell=bash
# Sourced by the sbatch files: the site's settings, and a command until the job's time is over.
#
# A job is queued again, by `scontrol requeue`, when its command ended early because of the time
# limit (USR1 comes 300 s before it), a preemption (TERM while the job runs) or a lost node, and
# at most MOST_REQUEUES times in a row without progress. `scancel` ends it for good.

LEAD=${SIGNAL_LEAD:-300}   # seconds; as in the lines --signal=B:USR1@300 of the sbatch files
SPARE=${DEADLINE_SPARE:-60} # seconds between the training's deadline and the end of the job

# Sets `python`, `bin` and `runner` for the caller.
# shellcheck disable=SC2034
site_settings() {
    set -a
    set +u # it may read variables that are not set, or call `module`, which does
    # shellcheck source=/dev/null
    if [[ -f scripts/cluster.env ]]; then source scripts/cluster.env; fi
    set -u
    set +a
    # Workers inherit this of the process that starts Ray on their node, not of the driver.
    export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
    export VERL_USE_EXTERNAL_MODULES=recipe.plugin
    if [[ -n ${NETWORK_INTERFACE:-} ]]; then
        export NCCL_SOCKET_IFNAME=$NETWORK_INTERFACE GLOO_SOCKET_IFNAME=$NETWORK_INTERFACE
    fi
    if [[ ${HF_HUB_OFFLINE:-0} != 0 ]]; then
        export HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
    fi
    # For the job's `srun`s: a total (--gpus=16) is more than the node of a step has, and so are the
    # GPUs per node of the sbatch file after --gres=gpu:4, which replaces them; without both a step
    # has the GPUs of its nodes. NONE, of sbatch --export=NONE, leaves a step without a PATH.
    unset SLURM_GPUS SLURM_GPUS_PER_NODE
    export SLURM_EXPORT_ENV=ALL
    # With GRES, SLURM sets it beside CUDA_VISIBLE_DEVICES, and verl refuses to choose.
    if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; fi
    # In a shared folder `ray start` writes a file of one name for all users, and ends at another's.
    # The names of Ray's sockets add 68 bytes, and the system takes 107.
    local temporary=${TMPDIR:-/tmp}
    temporary=${temporary%/}/ray_of_$UID
    if ((${#temporary} > 39)); then
        temporary=/tmp/ray_of_$UID
        export VLLM_RPC_BASE_PATH=${VLLM_RPC_BASE_PATH:-/tmp}
    fi
    export RAY_TMPDIR=${RAY_TMPDIR:-$temporary}
    # Its default is below the home: on a shared disk nodes that compile at once end each other. What
    # it compiles is loaded from there, which a disk without execution refuses.
    local probe
    if probe=$(mktemp "${TMPDIR:-/tmp}/probe.XXXXXX") && chmod +x "$probe" && "$probe"; then
        export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-${TMPDIR:-/tmp}/triton_of_$UID}
    fi
    rm -f "$probe"
    # A job with GPUs and the environment of the quick start would train on the CPU.
    if [[ ${SLURM_GPUS_ON_NODE:-0} != 0 ]]; then export RECIPE_MACHINE=${RECIPE_MACHINE:-gpu}; fi
    export PYTHONNOUSERSITE=${PYTHONNOUSERSITE-1} # packages in ~/.local come before those of a conda environment
    # Ray needs thousands of open files, RDMA locked memory: raise both as far as the site allows.
    ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
    ulimit -l unlimited 2>/dev/null || true
    read -ra runner <<<"${RECIPE_RUNNER:-}"
    local active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
    # After the quick start .venv is the CPU's: an active environment with verl comes first.
    local verl="$active/lib/python3*/site-packages/verl"
    if [[ -z $active || -n ${RECIPE_RUNNER:-} ]] ||
        { [[ -x .venv/bin/python ]] && ! compgen -G "$verl" >/dev/null; }; then active=.venv; fi
    bin=${RECIPE_VENV:-$active}/bin
    python=(${runner[@]+"${runner[@]}"} "$bin/python")
    [[ ! -x $bin/python ]] || PATH=$bin:$PATH # conda's compiler, which Triton looks for
}

# Succeeds where the job's Python has this project: on a login node it may run in a container only,
# and an srun there, as of pyxis, would ask for an allocation.
imports_recipe() {
    if [[ ${runner[0]:-} == srun && -z ${SLURM_JOB_ID:-} ]]; then return 1; fi
    "${python[@]}" -c 'import recipe.config.show' 2>/dev/null
}

# as_job COMMAND...: run a command; with --dry-run only print it.
as_job() {
    if [[ -n ${DRY_RUN:-} ]]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# log_to FOLDER: from here on everything goes to FOLDER/slurm-JOB.log too (requeues append).
log_to() {
    if [[ -n ${DRY_RUN:-} || -z ${SLURM_JOB_ID:-} ]]; then return; fi
    local log=$1/slurm-$SLURM_JOB_ID.log last
    mkdir -p "$1"
    last=$(tac "$log" 2>/dev/null | sed '/^== job /q') || true
    exec > >(trap '' TERM USR1 INT; exec tee -a "$log") 2>&1
    if [[ -n $last && $last != *"== end"* ]]; then
        echo "the last start ended without a word: its first node was lost, or the job was killed"
    fi
    echo "== job $SLURM_JOB_ID on ${SLURM_JOB_NODELIST:-?}, start ${SLURM_RESTART_COUNT:-0}, $(date)"
}

job_field() { # NAME: of this job, by the controller; fails if that does not answer
    local shown
    shown=$(SLURM_TIME_FORMAT=standard scontrol show job -o "$(job_name)" 2>/dev/null) || return 1
    tr ' ' '\n' <<<"$shown" | sed -n "s/^$1=//p" | head -1
}

patiently() { # COMMAND...: again for half a minute while it fails, e.g. as the controller restarts
    local pause
    for pause in ${REQUEUE_PAUSES:-5 10 15}; do
        if "$@"; then return 0; fi
        sleep "$pause"
    done
    "$@"
}

job_end() { # when SLURM ends the job, in seconds since the epoch; fails without a limit
    local end
    end=$(job_field EndTime) || return 1
    date -d "${end:-none}" +%s 2>/dev/null
}

# Sets RECIPE_DEADLINE; a job too short for its own warning would be queued again forever.
check_time() {
    local end left
    end=$(job_end) || return 0
    left=$((end - $(date +%s)))
    if ((left < 2 * LEAD)); then
        echo "the job has $left s, and is warned $LEAD s before its end: give it at least" \
            "$((2 * LEAD)) s with sbatch --time=..." >&2
        exit 1
    fi
    export RECIPE_DEADLINE=$((end - SPARE))
}

# begin FOLDER: start the log, check the time limit, listen for a preemption.
begin() {
    log_to "$1"
    if [[ -n ${DRY_RUN:-} ]]; then return; fi
    check_time
    # At a preemption SLURM sends TERM to the steps of a job at once, but to its script only when
    # GraceTime is over. This step passes it on.
    # It holds no memory or GPU: before SLURM 22.05 --overlap shares CPUs only.
    srun --overlap --mem=0 --gres=none --nodes=1 --ntasks=1 --nodelist="${SLURMD_NODENAME:-}" bash -c \
        'trap "kill -TERM $1; exit" TERM; while :; do sleep infinity & wait; done' watch $$ &>/dev/null &
}

# may_requeue: succeed if nobody canceled this job and the last starts made progress. The caller
# sets `run_folder` and defines `progress`, whose output changes when the work advances.
# shellcheck disable=SC2154
may_requeue() {
    local state now before='' count=0 note
    note=$run_folder/.requeues-$(job_name)
    state=$(patiently job_field JobState) || state=RUNNING # no answer: perhaps it will be queued
    if [[ $state != RUNNING && $state != PREEMPTED && $state != SUSPENDED ]]; then
        echo "the job is ${state:-gone}: somebody has canceled or requeued it"
        return 1
    fi
    now=$(progress)
    if [[ -f $note ]]; then
        read -r count before <"$note" || true
        if [[ $now == "$before" ]]; then count=$((count + 1)); else count=0; fi
    fi
    if ((count >= ${MOST_REQUEUES:-3})); then
        echo "queued again $count times without progress (it stands at ${now:-nothing}): the job" \
            "ends; look at the log above, and whether a step fits into the time limit" >&2
        rm -f "$note"
        return 1
    fi
    mkdir -p "$run_folder"
    echo "$count $now" >"$note"
}

warned='' # why the job's command was told to end
child=''  # the command that runs now
ended_child=''

# listen: SLURM's signals end the command that runs now, and no other is started after it.
listen() {
    trap 'warned="time limit"; end_child; tell_end' USR1
    trap 'warned=${warned:-preemption}; end_child; tell_end' TERM
}
# tell_end: a preemption brings the job's end forward. The trainer reads .stop (recipe.run.stop).
tell_end() {
    local end
    if [[ -z ${tells:-} || ! -d ${run_folder:-} ]]; then return 0; fi # a sweep may run beside it
    end=$(job_end) || return 0 # RECIPE_DEADLINE holds
    { echo $((end - SPARE)) >"$run_folder/.stop"; } 2>/dev/null || true
}
# Once a command: the trainer takes a second TERM, 5 s later, for an order to end without a save.
end_child() {
    if [[ -z $child || $child == "$ended_child" ]]; then return 0; fi
    ended_child=$child
    kill -TERM "$child" 2>/dev/null || true
}

# watched COMMAND...: runs it while SLURM's signals are listened to; its status.
watched() {
    local status=0
    if [[ -n ${DRY_RUN:-} ]]; then
        as_job "$@"
        return
    fi
    if [[ -n $warned ]]; then return 143; fi
    "$@" &
    child=$!
    if [[ -n $warned ]]; then end_child; fi # a signal between the two lines above
    # wait returns at once when a trap has run: wait again for the command to end its processes.
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    if ((status > 128)); then # perhaps that of the trap, if the command ended at the same moment
        local ended=0
        wait "$child" 2>/dev/null || ended=$?
        if ((ended != 127)); then status=$ended; fi # 127: bash has forgotten it
    fi
    child=''
    return "$status"
}

# finish STATUS: exit with STATUS; requeue the job first if it was interrupted.
finish() {
    local status=$1 again=
    if ((status == 75)); then warned=${warned:-time limit}; fi # it has ended in time by itself
    if ((status != 0)) && [[ -z $warned ]] && lost_node; then warned='a node was lost'; fi
    if ((status == 0)); then rm -f "$run_folder/.requeues-$(job_name)"; fi
    if ((status != 0)) && [[ -n $warned ]] && may_requeue; then
        again=1
        echo "$warned: queued again, to go on from what is saved (SLURM calls it CANCELLED ..." \
            "DUE TO JOB REQUEUE)"
    fi
    if [[ -z ${DRY_RUN:-} ]]; then echo "== end, exit code $status"; fi
    if [[ -n $again ]]; then patiently scontrol requeue "$(job_name)"; fi
    exit "$status"
}

# job_name: of this job, or of its task alone. The last task of an array has the array's id as SLURM_JOB_ID, by
# which scontrol would requeue all tasks.
job_name() {
    local array=${SLURM_ARRAY_JOB_ID:-}
    echo "${array:-${SLURM_JOB_ID:-}}${array:+_$SLURM_ARRAY_TASK_ID}"
}

lost_node() { return 1; }

# token: a random key for the servers of this job, which keeps other users' jobs out.
token() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# port_of_job: a port above those of Ray's workers (to 19999) and below the ephemeral ones (32768).
port_of_job() { echo $((20000 + ${SLURM_JOB_ID:-0} % 10000)); }

if [[ -n ${SLURM_JOB_ID:-} ]]; then listen; fi
