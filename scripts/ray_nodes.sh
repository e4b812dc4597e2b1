# shellcheck shell=bash
# Sourced by train.sbatch: one Ray cluster over the nodes of the job, before the driver starts.

# Python: wait until NODES nodes have joined the cluster of RAY_ADDRESS, at most SECONDS.
READY='
import os, sys, time, ray
nodes, seconds, alive = int(sys.argv[1]), float(sys.argv[2]), 0
address, end = os.environ["RAY_ADDRESS"], time.monotonic() + seconds
while time.monotonic() < end:
    try:
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        alive = sum(node["Alive"] for node in ray.nodes())
    except (ConnectionError, RuntimeError):  # the first node is not up yet
        alive = 0
    if alive >= nodes:
        sys.exit(print(f"Ray has {alive} nodes: {ray.cluster_resources()}"))
    time.sleep(2)
sys.exit(f"only {alive} of {nodes} nodes joined Ray at {address} within {seconds:.0f} s: look at the "
    "lines of srun and ray above; do the nodes reach each other on that port (NETWORK_INTERFACE, "
    "RAY_PORT in scripts/cluster.env)? READY_SECONDS waits longer")
'

# start_ray [GPUS]: Ray on every node (without a number it counts them itself); sets RAY_ADDRESS.
# Its `srun`s end with the job. `python`, `bin` and `runner` are those of site_settings.
# shellcheck disable=SC2154
start_ray() {
    local gpus=${1:-} head head_ip address why='' port=${RAY_PORT:-$(port_of_job)} status=0
    local cpus=${RAY_NUM_CPUS:-}
    if [[ -z $cpus ]]; then # slots, not cores: verl's actors reserve 3 for each GPU, and 9
        cpus=$(nproc)
        if ((cpus < 64)); then cpus=64; fi
    fi
    # After TERM, as at a preemption, Ray would end its nodes in 30 s, perhaps while a step is saved.
    export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=${RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S:-3600}
    # One token for all nodes of this job: another user's job cannot join or command its cluster.
    RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(token)}
    export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    head=${hosts[0]}
    head_ip=$(address_of "$head")
    if [[ -z $head_ip ]]; then
        why='no address'
    elif ((${#hosts[@]} > 1)) && [[ $head_ip == 127.* || $head_ip == ::1 ]]; then
        why="an address that no other node reaches, $head_ip,"
    fi
    if [[ -n $why ]]; then
        echo "$head has $why${NETWORK_INTERFACE:+ on $NETWORK_INTERFACE}: NETWORK_INTERFACE in" \
            "scripts/cluster.env names an interface that every node has" >&2
        return 1
    fi
    ray_nodes=()
    on_nodes "$head" -- start --head --node-ip-address="$head_ip" --port="$port" \
        ${gpus:+--num-gpus="$gpus"} --num-cpus="$cpus" --include-dashboard=false
    address=$head_ip:$port
    if [[ $head_ip == *:* ]]; then address="[$head_ip]:$port"; fi # IPv6
    on_nodes "${hosts[@]:1}" -- start --address="$address" ${gpus:+--num-gpus="$gpus"} \
        --num-cpus="$cpus"
    export RAY_ADDRESS=$address
    echo "Ray: first node $head ($RAY_ADDRESS), ${#hosts[@]} nodes, ${gpus:-all} GPUs each"
    "${python[@]}" -c "$READY" "${#hosts[@]}" "${READY_SECONDS:-300}" &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        if lost_node; then
            echo "Ray ended on a node while it started, see above; is port $port taken there" \
                "(RAY_PORT in scripts/cluster.env)?" >&2
            kill -KILL "$child" # inside ray.init it would act on a TERM much later
            break
        fi
        sleep 1
    done
    wait "$child" || status=$?
    child=''
    return "$status"
}

# The first node's address, by NETWORK_INTERFACE where that is set. Not ray's own guess: on many
# systems that is the loopback, which no other node reaches.
address_of() {
    local ask='hostname -I'
    if [[ -n ${NETWORK_INTERFACE:-} ]]; then
        ask="ip -o addr show dev $NETWORK_INTERFACE | awk '{print \$4}' | cut -d/ -f1"
    fi
    srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap bash -c "$ask" | awk '{print $1; exit}'
}

# Every srun of a GRES step sets it again beside CUDA_VISIBLE_DEVICES, and verl refuses to choose.
# shellcheck disable=SC2016
ONE_VENDOR='if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
fi; exec "$@"'

# Sites that bind tasks to cores would give Ray one core without --cpus-per-task.
# shellcheck disable=SC2154
on_nodes() { # NODES... -- ARGUMENTS: one long-lived `ray` on each
    local nodes=() inside=(${runner[@]+"${runner[@]}"}) container=()
    if [[ ${inside[0]:-} == srun ]]; then # pyxis: its options, since a step starts no step
        container=("${inside[@]:1}") inside=()
    fi
    while [[ $1 != -- ]]; do
        nodes+=("$1")
        shift
    done
    shift
    srun ${container[@]+"${container[@]}"} --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" \
        --ntasks-per-node=1 ${SLURM_CPUS_ON_NODE:+--cpus-per-task="$SLURM_CPUS_ON_NODE"} --overlap \
        --kill-on-bad-exit=1 --nodelist="$(IFS=,; echo "${nodes[*]}")" \
        bash -c "$ONE_VENDOR" ray ${inside[@]+"${inside[@]}"} "$bin/ray" "$@" --block &
    ray_nodes+=("$!")
}

# lost_node: Ray has ended on some node, which it does only when the node or its Ray died.
lost_node() {
    local pid
    for pid in ${ray_nodes[@]+"${ray_nodes[@]}"}; do
        kill -0 "$pid" 2>/dev/null || return 0
    done
    return 1
}
