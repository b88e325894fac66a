#!/bin/bash
# beside_perftest.sh [BENCHMARK]: transfers over RDMA, checksums off, beside ib_read_bw over the same two devices, alternating,
# in MB/s (10^6 bytes); for the Soft-RoCE machine. Fails if the median of the ratios is below MIN_RATIO_PERCENT.
set -euo pipefail

benchmark=${1:-$(dirname "$0")/ibverbs_benchmark}
# The ratio is the emulator's too: medians were 97 to 119 % on one machine and 74 % on another, single pairs 38 to 218 %. The
# goal of 90 % is read off the line at the end, on the machine in question; what fails here is half of that machine's worth.
readonly MIB=32 PAIRS=11 MIN_RATIO_PERCENT=50 PERFTEST_ATTEMPTS=10
# Of ib_read_bw's server, so that two runs never meet.
port=18515

# perftest takes a number of a GID; the kernel gives it to the GID of the IPv4 address as it likes.
gid_index() {
  local file
  for file in /sys/class/infiniband/"$1"/ports/1/gids/*; do
    if [[ $(<"$file") == *:ffff:0a00:* ]]; then
      echo "${file##*/}"
      return
    fi
  done
  return 1
}

# With our timeout of the device and as many bytes on their way. With its own (67 ms, 128 MiB) it was slower there: it asks a
# busy peer again for what that is sending. It counts in 2^20 bytes.
perftest_once() {
  port=$((port + 1))
  local -a options=(--size 1048576 --iters "$MIB" --qp-timeout 16 --tx-depth 4 --ib-port 1 --port "$port")
  ib_read_bw "${options[@]}" --ib-dev rxe0 --gid-index "$(gid_index rxe0)" >/dev/null &
  local server=$! tries=100 rate
  until netstat -ltn | grep -q ":$port "; do
    ((tries-- > 0)) && kill -0 "$server" || return 1
    sleep 0.1
  done
  rate=$(ib_read_bw "${options[@]}" --ib-dev rxe1 --gid-index "$(gid_index rxe1)" 10.0.0.1 |
    awk '$1 == 1048576 {printf "%.1f\n", $4 * 1.048576}')
  wait "$server" && [[ $rate ]] && echo "$rate"
}

# perftest measures the processor's clock first, and gives up ("Can't produce a report") where a busy emulated one makes it
# too uneven: that says nothing of RDMA, so it is asked again.
perftest_rate() {
  local attempt
  for ((attempt = 0; attempt < PERFTEST_ATTEMPTS; ++attempt)); do
    if perftest_once; then return; fi
  done
  echo "ib_read_bw has failed $PERFTEST_ATTEMPTS times in a row" >&2
  return 1
}

our_rate() {
  "$benchmark" rxe0 rxe1 "$MIB" 1 off 1 | awk 'NR == 1 {print $1}'
}

ratios=()
for ((pair = 0; pair < PAIRS; ++pair)); do
  if ((pair % 2)); then ours=$(our_rate); fi
  perftest_rate >"$TEST_TMPDIR/rate"
  theirs=$(<"$TEST_TMPDIR/rate")
  if ((pair % 2 == 0)); then ours=$(our_rate); fi
  ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN {printf "%d", 100 * a / b}')
  ratios+=("$ratio")
  echo "ib_read_bw $theirs MB/s, a transfer over one connection $ours MB/s: $ratio %"
done
median=$(printf '%s\n' "${ratios[@]}" | sort -n | sed -n "$((PAIRS / 2 + 1))p")
echo "median of $PAIRS pairs: $median %"
((median >= MIN_RATIO_PERCENT))
