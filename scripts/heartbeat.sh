# Sourced by setup.sh and test.sh: `heartbeat NAME COMMAND...` runs a command and, where standard
# error is not a terminal, prints a line every 15 seconds until it ends.
heartbeat() {
    local name=$1 status=0 began=$SECONDS
    shift
    beat=
    if [[ ! -t 2 ]]; then
        # Without its redirection sleep would hold the pipe of a reader open after the kill.
        (while sleep 15 >/dev/null 2>&1; do echo "$name: $((SECONDS - began)) s so far" >&2; done) &
        beat=$!
        trap stop_heartbeat EXIT
    fi
    "$@" || status=$?
    stop_heartbeat
    return "$status"
}
stop_heartbeat() {
    [[ -z ${beat:-} ]] || kill "$beat" 2>/dev/null || true
    beat=
}
