#!/usr/bin/env bash
# Tests run_mutant.sh on the sample of this folder: a caught, a surviving and a hanging mutant.
set -euo pipefail
cd "$(dirname "$0")"
failures=0

# expect STATUS TEXT COMMAND...: the command ends with that status and says that text.
expect() {
  local want=$1 text=$2 got=0 output
  shift 2
  output=$("$@" 2>&1) || got=$?
  if ((got != want)) || [[ $output != *"$text"* ]]; then
    echo "FAILED: $*: status $got instead of $want, or no '$text' in: $output"
    failures=$((failures + 1))
  fi
}

expect 0 "FAILED  ] SamplePercentTest.IsAtMostOneHundred" \
  ./run_mutant.sh kForgetTheUpperLimit 60 ./mutable.sample_percent_test
expect 1 "MUTATION SURVIVED: kForgetTheLowerLimit" \
  ./run_mutant.sh kForgetTheLowerLimit 60 ./mutable.sample_percent_test
expect 1 "MUTATION SURVIVED: kNoSuchMutation" ./run_mutant.sh kNoSuchMutation 60 ./mutable.sample_percent_test
expect 1 "ran past 1 s, and none had failed" ./run_mutant.sh kHang 1 /usr/bin/sleep 30
printf '#!/bin/sh\necho "sample.cc:1: Failure"\nexec sleep 30\n' >"$TEST_TMPDIR/fails_and_hangs"
chmod +x "$TEST_TMPDIR/fails_and_hangs"
expect 0 "sample.cc:1: Failure" ./run_mutant.sh kHang 1 "$TEST_TMPDIR/fails_and_hangs"
expect 2 "no test binary" ./run_mutant.sh kAny 60 ./missing
expect 2 "usage:" ./run_mutant.sh
expect 0 "usage:" ./run_mutant.sh --help
exit $((failures != 0))
