#!/usr/bin/env bash
# Starts the server, a trainer and, for each version, a rollout; checks what the rollouts say.
# usage: trainer_and_rollout_test.sh SERVER TRAINER ROLLOUT
set -euo pipefail

server=$1 trainer=$2 rollout=$3
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/example.XXXXXX")
started=()
cleanup() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Its first line of output comes once it listens, and says where.
exec {announcements}< <(exec "$server" --listen 127.0.0.1:0 --state-dir "$folder/state" --json)
started+=("$!")
read -r -t 30 -u "$announcements" line || fail "the server did not start"
[[ $line =~ \"address\":\ ?\"([^\"]+)\" ]] || fail "the server does not say where it listens: $line"
address=${BASH_REMATCH[1]}

coproc TRAINER { exec "$trainer" "$address"; }
# shellcheck disable=SC2153  # set by coproc; gone once the process ends
trainer_pid=$TRAINER_PID
started+=("$trainer_pid")
for step in 1 2; do
  read -r -t 30 -u "${TRAINER[0]}" line || fail "the trainer ended before it published version $step"
  [[ $line == "published $step" ]] || fail "the trainer said: $line"
  said=$("$rollout" "$address" "rollout-$step") || fail "rollout $step failed"
  [[ $said == "version $step: every weight is $step" ]] || fail "rollout $step said: $said"
  echo "$said"
  echo >&"${TRAINER[1]}"
done
wait "$trainer_pid" || fail "the trainer failed"
