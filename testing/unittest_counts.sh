# Counts what a run of Python's unittest said; for scripts that run tests outside of Bazel.
#
#   status=0; python3 some_test.py >"$log" 2>&1 || status=$?
#   count_unittests "$log" "$status"     # adds to passed, failed and skipped
#
#   run_unittests python3 some_test.py   # the whole: shows the run, ends with the line of counts, and fails if a test did
#
# Modules of the checkout, whose root is the current folder, can be imported: `from testing.waiting import until`.
# A run that ended badly without saying how counts as one failed test.
# shellcheck shell=bash disable=SC2034  # whoever sources this reads the counts
passed=0 failed=0 skipped=0

count_unittests() {
  local log=$1 status=$2 ran bad left_out
  # The last of each kind: a failed test may have shown what another run of unittest said.
  said() { sed -n "s/^\(OK\|FAILED\)\( (.*\)\?$/\2/p" "$log" | tail -n 1 | sed -n "s/.*$1=\([0-9]*\).*/\1/p"; }
  ran=$(sed -n 's/^Ran \([0-9]*\) tests\? in .*/\1/p' "$log" | tail -n 1)
  bad=$(($(said failures) + $(said errors) + 0))
  left_out=$(($(said skipped) + 0))
  if ((status != 0)); then
    ((bad > 0)) || bad=1
    [[ -n $ran ]] || ran=1
  fi
  failed=$((failed + bad)) skipped=$((skipped + left_out)) passed=$((passed + ran - bad - left_out))
}

run_unittests() {
  local log status=0
  log=$(mktemp)
  PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} "$@" 2>&1 | tee "$log" || status=$?
  count_unittests "$log" "$status"
  rm "$log"
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0))
}
