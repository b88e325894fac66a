# shellcheck shell=bash
# The machine's network. Device rxeN is Soft-RoCE over the network device nicN, which has the address 10.0.0.(N+1); a
# cable leads from each nicN to a switch, the bridge `bridge` in the network namespace `switch`:
#
#   rxe0 nic0 10.0.0.1 ----- port0 \
#   rxe1 nic1 10.0.0.2 ----- port1 - bridge
#   ...
#
# All nics are in one network namespace, because Soft-RoCE of this kernel works only in the first. Without more, Linux would
# send what one nic's address says to another's over the loopback device; rules of routing keep it on the cables.

# Waits up to 10 s until the command succeeds.
wait_until() {
  local what=$1 tries
  shift
  for ((tries = 0; tries < 200; tries++)); do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  echo "init: waited 10 s for $what"
  return 1
}

# make_network DEVICES MTU RATE NETEM: RATE and NETEM may be empty. The commands for ip(8) go through few processes: starting
# one takes an emulated processor 50 ms.
make_network() {
  local devices=$1 mtu=$2 rate=$3 netem=$4 i
  echo 200000 >/proc/sys/net/core/netdev_max_backlog # Soft-RoCE sends in bursts; what is dropped costs a timeout
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  ip netns add switch || return
  for ((i = 0; i < devices; i++)); do make_cable "$i" "$mtu"; done | ip -batch - || return
  make_switch "$devices" | ip -n switch -batch - || return
  for ((i = 0; i < devices; i++)); do accept_own_packets "$i" || return; done
  make_routes "$devices" | ip -batch - || return
  for ((i = 0; i < devices; i++)); do
    rdma link add "rxe$i" type rxe netdev "nic$i" || return
    slow_down "$i" "$rate" "$netem" || return
  done
  for ((i = 0; i < devices; i++)); do wait_until "the GID of rxe$i" has_gid "$i" || return; done
}

make_cable() {
  local i=$1 mtu=$2
  printf 'link add nic%d address 02:00:0a:00:00:%02x mtu %d type veth peer name port%d mtu %d netns switch\n' \
    "$i" $((i + 1)) "$mtu" "$i" "$mtu"
  echo "addr add 10.0.0.$((i + 1))/24 dev nic$i"
  echo "link set nic$i up"
}

make_switch() {
  local devices=$1 i
  echo "link add bridge type bridge"
  echo "link set bridge up"
  for ((i = 0; i < devices; i++)); do echo "link set port$i master bridge up"; done
}

# A nic answers for its own address alone, and takes packets that come from another of this machine's.
accept_own_packets() {
  local settings=/proc/sys/net/ipv4/conf/nic$1
  echo 0 >"$settings/rp_filter"
  echo 1 >"$settings/accept_local"
  echo 1 >"$settings/arp_ignore"
  echo 2 >"$settings/arp_announce"
}

make_routes() {
  local devices=$1 i
  echo "link set lo up"
  for ((i = 0; i < devices; i++)); do route_over_cable "$i" "$devices"; done
  # From here on, the table of the machine's own addresses comes after the rules above.
  echo "rule add pref 32000 lookup local"
  echo "rule del pref 0"
}

route_over_cable() {
  local i=$1 devices=$2 table=$((100 + $1)) address=10.0.0.$(($1 + 1)) j
  echo "rule add pref 5 from $address to $address lookup local
rule add pref 10 iif nic$i lookup local
rule add pref 20 oif nic$i lookup $table
rule add pref 22 from $address to 10.0.0.0/24 lookup $table
route add 10.0.0.0/24 dev nic$i src $address table $table"
  for ((j = 0; j < devices; j++)); do
    ((i == j)) || printf 'neigh replace 10.0.0.%d dev nic%d lladdr 02:00:0a:00:00:%02x nud permanent\n' $((j + 1)) "$i" $((j + 1))
  done
}

# Limits the rate of the cable in both directions, and treats what goes up it as tc-netem(8) is told to.
slow_down() {
  local i=$1 rate=$2 netem=$3 parent=root
  if [[ $rate ]]; then
    local shape=(tbf rate "$rate" burst 128k limit 256m)
    tc qdisc add dev "nic$i" root handle 1: "${shape[@]}" &&
      tc -n switch qdisc add dev "port$i" root "${shape[@]}" || return
    parent="parent 1:1"
  fi
  if [[ $netem ]]; then
    # shellcheck disable=SC2086  # several words each
    tc qdisc add dev "nic$i" $parent handle 10: netem $netem limit 200000
  fi
}

# Whether the device has the GID of its IPv4 address (RoCE v2), which the kernel adds a little after the device.
has_gid() {
  local file gid
  for file in /sys/class/infiniband/rxe"$1"/ports/1/gids/*; do
    read -r gid <"$file" || continue
    [[ $gid != *:ffff:0a00:* ]] || return 0
  done 2>/dev/null
  return 1
}

# Sets `port` to the virtio port "output".
find_port() {
  local name
  for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name" || continue
    [[ $name != output ]] || return 0
  done 2>/dev/null
  return 1
}

# Each device's counters of errors and retries that are not 0.
rdma_errors() {
  grep -H . /sys/class/infiniband/*/ports/1/hw_counters/*{err,retry,duplicate}* 2>/dev/null | grep -v ':0$' | sort -u
}
