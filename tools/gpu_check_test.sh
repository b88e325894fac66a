#!/usr/bin/env bash
# tools/gpu_check without a GPU: it says so and fails; and on the fake driver, where it does all that it does on one.
set -euo pipefail

check=tools/gpu_check
fake=$PWD/testing/fake_cuda/libcuda_fake.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
binaries=$scratch/binaries
mkdir "$binaries"
ln -s "$PWD/th/memory/cuda/gpu_test" "$PWD/th/memory/cuda/gpu_benchmark" \
  "$PWD/th/transfer/cuda_ipc/cuda_ipc_gpu_test" "$PWD/th/transfer/cuda_ipc/cuda_ipc_benchmark" \
  "$PWD/th/transfer/device_staging_benchmark" "$PWD/th/cli/th" \
  "$PWD/th/controlled_rank/controlled_rank" "$PWD/th/server/tensorhub_server" \
  "$PWD/th/c_interface/libtensorhub.so" "$binaries/"

fail() {
  echo "FAILED: $*" >&2
  cat "$scratch/out" >&2
  exit 1
}

# expect STATUS TEXT ARGUMENT...: the check ends with the status and says the text.
expect() {
  local wanted=$1 text=$2 status=0
  shift 2
  "$check" "$@" >"$scratch/out" 2>&1 || status=$?
  ((status == wanted)) || fail "exit status $status instead of $wanted: gpu_check $*"
  grep -qF -- "$text" "$scratch/out" || fail "'$text' is not said: gpu_check $*"
}

expect 2 "there is no $scratch/gpu_test" --binaries "$scratch"
expect 2 "there is no CUDA driver (/nowhere/libcuda.so.1" --binaries "$binaries" --driver /nowhere/libcuda.so.1
TH_FAKE_CUDA_INIT_ERROR=100 expect 2 "CUDA_ERROR_NO_DEVICE (100)" --binaries "$binaries" --driver "$fake"
TH_FAKE_CUDA_DEVICES=0 expect 2 "CUDA_ERROR_NO_DEVICE (100)" --binaries "$binaries" --driver "$fake"
expect 2 "unknown option --other" --other
expect 0 "gpu_check: passed" --binaries "$binaries" --driver "$fake" --bytes 1048576 --runs 1 --no-judge
grep -q "kernel: sums .* of memory bandwidth, goal 0.50" "$scratch/out" || fail "no figure of the sums"
for way in "same device" "peer access"; do
  grep -q "cuda_ipc, $way, 1 tensors .* of the driver's copy" "$scratch/out" || fail "no figure of a transfer: $way"
done
for tensors in "61000 tensors" "18000 tensors of 8192 bytes"; do
  grep -q "same device, $tensors.* of one tensor .*, goal 0.91" "$scratch/out" || fail "no figure of $tensors"
done
for way in host device; do
  grep -q "staged to the $way, segments of .* of pinned copy" "$scratch/out" || fail "no figure of staging: $way"
done
grep -q "over cuda_ipc, checksums on" "$scratch/out" || fail "no figure of an update"
grep -q "skipped: torch's tensors, as python3 has no torch" "$scratch/out" || fail "torch's tensors are neither tested nor named"

# A driver whose copies do nothing is fast and wrong: that fails though figures are not judged.
TH_FAKE_CUDA_LOSE_DEVICE_COPIES=1 "$binaries/cuda_ipc_benchmark" --driver "$fake" --bytes 1048576 --runs 1 --no-judge \
  >"$scratch/out" 2>&1 && fail "bytes that never arrived are taken for a transfer"
grep -q "DATA_LOSS.* is wrong after a transfer" "$scratch/out" || fail "the wrong byte is not named"
echo passed
