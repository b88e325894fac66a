#!/usr/bin/env bash
# RDMA READs of 1 MiB from rxe1 by rxe0, as ib_read_bw measures them.
set -euo pipefail

readonly SIZE=1048576 READS=30

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

options=(--size "$SIZE" --iters "$READS" --ib-port 1 --report_gbits)
ib_read_bw "${options[@]}" --ib-dev rxe1 --gid-index "$(gid_index rxe1)" >/dev/null &
source=$!
tries=100
until netstat -ltn | grep -q ':18515 '; do # until it listens
  if ((tries-- == 0)) || ! kill -0 "$source"; then
    echo "read_bandwidth.sh: the source does not listen" >&2
    exit 1
  fi
  sleep 0.1
done
ib_read_bw "${options[@]}" --ib-dev rxe0 --gid-index "$(gid_index rxe0)" 10.0.0.2 | tee "$TEST_TMPDIR/report"
wait "$source"
grep -Eq "^ *$SIZE +$READS " "$TEST_TMPDIR/report"
