#!/usr/bin/env bash
# Every binary says its release and the commit that it was built from.
# usage: version_flag_test.sh BINARY...
set -euo pipefail

for binary; do
  said=$("$binary" --version) || { echo "FAILED: $binary --version ended with $?"; exit 1; }
  expected="^${binary##*/} [0-9]+\.[0-9]+\.[0-9]+ \(commit ([0-9a-f]+(-modified)?|unknown)\)$"
  [[ $said =~ $expected ]] || { echo "FAILED: $binary --version says: $said"; exit 1; }
done
