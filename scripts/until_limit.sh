# shellcheck shell=bash
# Sourced by the sbatch files: run a command to its end, or to the job's time limit.

# until_limit COMMAND...: exits with the command's status. At SLURM's TERM (--signal=B:TERM@...) the
# command gets the TERM, its end is awaited, and the job is queued again to go on later.
until_limit() {
    local child requeue=false status=0
    trap 'requeue=true; kill -TERM "$!" 2>/dev/null || true' TERM
    "$@" &
    child=$!
    # wait returns at once when the trap has run: wait again for the command to end its processes.
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        wait "$child" || status=$?
    done
    if $requeue && ((status != 0)); then
        echo "time limit near: queued again, to go on from the last checkpoint"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
}
