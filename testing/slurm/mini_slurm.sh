#!/usr/bin/env bash
# A throw-away Slurm cluster on this machine, as root: nodes in network namespaces of their own, two a rack.
#
#   MINI_SLURM_DIR=DIR testing/slurm/mini_slurm.sh up | down | exec COMMAND... | kill-node NODE | kill-daemon NODE |
#     start-node NODE | cut NODE | join NODE
#
# exec runs a command as on the head node. kill-node is a power cut: the daemon, its steps and all tasks at once.
# kill-daemon takes the daemon alone: Slurm has no hold of the node's tasks until start-node, and they go on. cut takes a
# node's network away while all goes on there. MINI_SLURM_NODES (5) nodes, node1 and so on, 10.77.0.i each.
set -euo pipefail
dir=${MINI_SLURM_DIR:?set MINI_SLURM_DIR to a folder of its own}
nodes=${MINI_SLURM_NODES:-5}
readonly cpus=4 port=17001 prefix=ths network=10.77.0 head=254 ready_s=30
conf=$dir/etc/slurm.conf
export SLURM_CONF=$conf

# The processes of a name whose arguments or environment hold a text.
processes() {
  local name=$1 text=$2 process
  for process in /proc/[0-9]*; do
    grep -qs "^[0-9]* ($name) [^Z]" "$process/stat" || continue
    if grep -zqsxF -- "$text" "$process/cmdline" "$process/environ"; then echo "${process#/proc/}"; fi
  done
}

write_configuration() {
  mkdir -p "$dir"/{etc,log,run,state,spool,munge}
  chmod 755 "$dir" "$dir"/*
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/munge.key")
  chown -R munge:munge "$dir/munge"
  chown munge:munge "$dir/run"
  cat >"$conf" <<CONF
ClusterName=mini
SlurmctldHost=head($network.$head)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/run/munge.socket,ttl=300,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
PlugStackConfig=$dir/etc/plugstack.conf
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdTimeout=10
SlurmctldTimeout=10
MinJobAge=300
RebootProgram=/bin/true
PropagateResourceLimits=NONE
CONF
  local i racks=()
  for ((i = 1; i <= nodes; i++)); do
    echo "NodeName=node$i NodeHostname=node$i NodeAddr=$network.$i Port=$((port + 1)) CPUs=$cpus RealMemory=4000" >>"$conf"
  done
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$conf"
  for ((i = 1; i <= nodes; i += 2)); do
    racks+=("rack$(((i + 1) / 2))")
    if ((i < nodes)); then echo "SwitchName=${racks[-1]} Nodes=node$i,node$((i + 1))"; else echo "SwitchName=${racks[-1]} Nodes=node$i"; fi
  done >"$dir/etc/topology.conf"
  echo "SwitchName=core Switches=$(IFS=, && echo "${racks[*]}")" >>"$dir/etc/topology.conf"
  : >"$dir/etc/plugstack.conf"
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$dir/etc/cgroup.conf"
  {
    printf '127.0.0.1 localhost\n%s head\n' "$network.$head"
    for ((i = 1; i <= nodes; i++)); do echo "$network.$i node$i"; done
  } >"$dir/etc/hosts"
}

# Runs a command in the namespaces of a node: head, node1 and so on.
on_node() {
  local node=$1
  shift
  # shellcheck disable=SC2016  # the inner shell expands
  ip netns exec "$prefix-$node" unshare --uts --mount --propagation private /bin/sh -c \
    'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"' "$node" "$dir/etc/hosts" "$@"
}

add_node() {
  local node=$1 address=$2
  ip netns add "$prefix-$node"
  ip -n "$prefix-$node" link set lo up
  ip link add eth0 netns "$prefix-$node" type veth peer name "$node" netns "$prefix-bridge"
  ip -n "$prefix-bridge" link set "$node" master br0 up
  ip -n "$prefix-$node" addr add "$network.$address/24" dev eth0
  ip -n "$prefix-$node" link set eth0 up
}

start_node() {
  mkdir -p "$dir/spool/$1"
  on_node "$1" slurmd -f "$conf" -N "$1"
}

up() {
  down
  write_configuration
  runuser -u munge -- munged --key-file="$dir/munge/munge.key" --socket="$dir/run/munge.socket" \
    --pid-file="$dir/run/munged.pid" --log-file="$dir/munge/munged.log" --seed-file="$dir/munge/munged.seed"
  ip netns add "$prefix-bridge"
  ip -n "$prefix-bridge" link add br0 type bridge
  ip -n "$prefix-bridge" link set br0 up
  local i
  add_node head "$head"
  for ((i = 1; i <= nodes; i++)); do add_node "node$i" "$i"; done
  on_node head slurmctld -f "$conf"
  for ((i = 1; i <= nodes; i++)); do start_node "node$i"; done
  local until=$((SECONDS + ready_s))
  while ((SECONDS < until)); do
    if on_node head timeout 5 srun --quiet --nodes="$nodes" --ntasks="$nodes" true 2>/dev/null; then return; fi
  done
  echo "mini_slurm: the nodes are not ready after $ready_s s" >&2
  on_node head sinfo -N -l >&2
  tail -n 20 "$dir/log/slurmctld.log" >&2
  return 1
}

down() {
  local namespace
  local -a left
  mapfile -t left < <(
    processes slurmctld "$conf"
    processes slurmd "$conf"
    processes '.*' "SLURM_CONF=$conf"
    processes munged "--socket=$dir/run/munge.socket"
  )
  ((${#left[@]} == 0)) || kill -KILL "${left[@]}" 2>/dev/null || true
  for namespace in $(ip netns list 2>/dev/null | awk -v prefix="$prefix-" 'index($1, prefix) == 1 { print $1 }'); do
    ip netns del "$namespace"
  done
}

kill_node() {
  local process
  for process in /proc/[0-9]*; do
    if grep -zqsxF -- "SLURMD_NODENAME=$1" "$process/environ" && grep -zqsxF -- "SLURM_CONF=$conf" "$process/environ"; then
      kill -KILL "${process#/proc/}" 2>/dev/null || true
    elif [[ $(ip netns identify "${process#/proc/}" 2>/dev/null) == "$prefix-$1" ]]; then
      kill -KILL "${process#/proc/}" 2>/dev/null || true
    fi
  done
  rm -f "$dir/run/slurmd-$1.pid"
}

kill_daemon() {
  kill -KILL "$(<"$dir/run/slurmd-$1.pid")"
  rm -f "$dir/run/slurmd-$1.pid"
}

case "${1:-}" in
  up) up ;;
  down) down ;;
  exec) shift && on_node head "$@" ;;
  kill-node) kill_node "$2" ;;
  kill-daemon) kill_daemon "$2" ;;
  start-node) start_node "$2" ;;
  cut) ip -n "$prefix-bridge" link set "$2" down ;;
  join) ip -n "$prefix-bridge" link set "$2" up ;;
  *) sed -n '2,9p' "$0" >&2 && exit 2 ;;
esac
