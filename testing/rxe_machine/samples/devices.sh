#!/usr/bin/env bash
# Checks what the machine promises its tests. Runs in a machine of three devices.
set -euo pipefail

fail() {
  echo "devices.sh: $*" >&2
  exit 1
}

[[ $(echo /sys/class/infiniband/*) == "/sys/class/infiniband/rxe0 /sys/class/infiniband/rxe1 /sys/class/infiniband/rxe2" ]] ||
  fail "the devices are $(echo /sys/class/infiniband/*)"
for i in 0 1 2; do
  port=/sys/class/infiniband/rxe$i/ports/1
  [[ $(<"$port/state") == *ACTIVE* ]] || fail "the port of rxe$i is $(<"$port/state")"
  found=false
  for gid in "$port"/gids/*; do
    type=$port/gid_attrs/types/${gid##*/}
    if [[ $(<"$gid") == 0000:0000:0000:0000:0000:ffff:0a00:000$((i + 1)) && $(<"$type") == "RoCE v2" ]]; then found=true; fi
  done 2>/dev/null # the types of empty GIDs cannot be read
  $found || fail "rxe$i has no RoCE v2 GID of 10.0.0.$((i + 1))"
  [[ -e /dev/infiniband/uverbs$i ]] || fail "there is no /dev/infiniband/uverbs$i"
  ibv_devinfo -d "rxe$i" | grep -q 'active_mtu:.*4096' || fail "the MTU of rxe$i is not 4096"
done
[[ $(ulimit -l) == unlimited ]] || fail "only $(ulimit -l) KiB of memory may be locked"

# Between two addresses of the machine packets take the cables, not the loopback device.
before=$(</sys/class/net/nic2/statistics/rx_packets)
ping -c 3 -i 0.1 -I 10.0.0.1 10.0.0.3 >/dev/null || fail "10.0.0.1 does not reach 10.0.0.3"
after=$(</sys/class/net/nic2/statistics/rx_packets)
((after >= before + 3)) || fail "packets to 10.0.0.3 do not arrive at nic2"

[[ ${TH_RXE_MACHINE-} == 1 && -d $TEST_TMPDIR && -e $0 ]] || fail "a test lacks its environment"
echo "devices.sh: three devices" >"$TEST_UNDECLARED_OUTPUTS_DIR/devices.txt"
