#!/usr/bin/env bash
# A real SLURM on one machine: a controller and two nodes, each with a host name, a network and an
# address of its own. Needs root, and Debian's packages: apt-get install slurm-wlm munge iproute2
#
#   tests/drills/cluster.sh up [FOLDER]       tests/drills/cluster.sh down [FOLDER]
#   tests/drills/cluster.sh kill n2 [FOLDER]  the node is gone at once, with all its processes
#   tests/drills/cluster.sh start n2 [FOLDER] and is back
#
# FOLDER (default /tmp/recipe-slurm) has slurm.conf, keys, states and logs; SLURM's commands find it
# through SLURM_CONF=FOLDER/slurm.conf. Only processes started here are ended, by their pid files.
set -euo pipefail
what=${1:?up, down, kill or start}
node=
if [[ $what == kill || $what == start ]]; then
    node=${2:?which node}
    shift
fi
folder=${2:-/tmp/recipe-slurm}
net=10.213.77
nodes=(n1 n2)

write_configuration() {
    cat >"$folder/slurm.conf" <<CONF
ClusterName=recipe
SlurmctldHost=ctl($net.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
SlurmctldPort=26817
SlurmdPort=26818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=20
KillWait=10
MinJobAge=600
InactiveLimit=0
JobRequeue=1
BatchStartTimeout=10
SchedulerParameters=sched_interval=5,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
${SLURM_EXTRA:-}
NodeName=n1 NodeAddr=$net.11 NodeHostname=n1 CPUs=$(nproc) RealMemory=8000 Gres=gpu:1 State=UNKNOWN
NodeName=n2 NodeAddr=$net.12 NodeHostname=n2 CPUs=$(nproc) RealMemory=8000 Gres=gpu:1 State=UNKNOWN
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
    # A GPU by name only. SLURM then sets CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, as for real.
    echo 'Name=gpu File=/dev/null' >"$folder/gres.conf"
}

network() {
    ip link add recipe-br type bridge
    ip addr add "$net.1/24" dev recipe-br
    ip link set recipe-br up
    local number=11 node
    for node in "${nodes[@]}"; do
        ip netns add "recipe-$node"
        ip link add "rc-$node" type veth peer name eth0 netns "recipe-$node"
        ip link set "rc-$node" master recipe-br up
        ip -n "recipe-$node" addr add "$net.$number/24" dev eth0
        ip -n "recipe-$node" link set eth0 up
        ip -n "recipe-$node" link set lo up
        number=$((number + 1))
    done
}

start_node() { # in a network, a host name and a mount table of its own
    # Not `ip netns exec`: that mounts a new /sys, without the cgroups that slurmd looks for.
    nsenter --net="/run/netns/recipe-$1" unshare --uts --mount bash -c "
        hostname $1
        mount --bind '$folder/hosts' /etc/hosts
        exec /usr/sbin/slurmd -D -N $1 -f '$folder/slurm.conf'" \
        >"$folder/slurmd-$1.out" 2>&1 &
    echo "$!" >"$folder/node-$1.pid"
}

up() {
    mkdir -p "$folder"/{state,spool-n1,spool-n2}
    printf '127.0.0.1 localhost\n%s.1 ctl\n%s.11 n1\n%s.12 n2\n' $net $net $net >"$folder/hosts"
    write_configuration
    dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
    chown munge: "$folder" "$folder/munge.key"
    chmod 400 "$folder/munge.key"
    chmod 755 "$folder"
    runuser -u munge -- /usr/sbin/munged --force --key-file="$folder/munge.key" \
        --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    network
    unshare --uts --mount bash -c "
        hostname ctl
        mount --bind '$folder/hosts' /etc/hosts
        exec /usr/sbin/slurmctld -D -f '$folder/slurm.conf'" >"$folder/slurmctld.out" 2>&1 &
    echo "$!" >"$folder/controller.pid"
    sleep 1
    local node
    for node in "${nodes[@]}"; do start_node "$node"; done
    export SLURM_CONF=$folder/slurm.conf
    for _ in $(seq 60); do
        if [[ $(sinfo -h -t idle -o %D 2>/dev/null | head -1) == 2 ]]; then
            sinfo
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 1
    done
    echo "the nodes did not come up within 60 s: see $folder/*.log" >&2
    tail -n 5 "$folder"/*.log "$folder"/*.out >&2
    exit 1
}

down() {
    local name
    for name in node-n1 node-n2 controller munged; do
        if [[ -f $folder/$name.pid ]]; then
            kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
            rm -f "$folder/$name.pid"
        fi
    done
    sleep 2
    for name in "${nodes[@]}"; do
        end_processes "$name"
        ip netns del "recipe-$name" 2>/dev/null || true
    done
    ip link del recipe-br 2>/dev/null || true
}

end_processes() { # of a node: those in its network
    local pids
    pids=$(ip netns pids "recipe-$1" 2>/dev/null) || return 0
    xargs -r kill -KILL <<<"$pids" 2>/dev/null || true
}

case $what in
    up) up ;;
    down) down ;;
    kill) end_processes "$node" ;;
    start) start_node "$node" ;;
    *) echo "up, down, kill or start" >&2 && exit 1 ;;
esac
