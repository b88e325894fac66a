#!/usr/bin/env bash
# What the machine says of tests that pass, fail and hang, of its own failure to boot, and of calls that are wrong.
set -uo pipefail

machine=testing/rxe_machine/rxe_machine
samples=testing/rxe_machine/samples
log=$TEST_TMPDIR/log
failures=0

complain() {
  echo "FAILED: $*"
  sed 's/^/  | /' "$log"
  failures=$((failures + 1))
}

# expect_status STATUS ARG...: runs the machine.
expect_status() {
  local expected=$1 status=0
  shift
  env XML_OUTPUT_FILE="$TEST_TMPDIR/results.xml" "$machine" "$@" >"$log" 2>&1 || status=$?
  ((status == expected)) || complain "exit status $status, not $expected, of: rxe_machine $*"
}

expect_line() { grep -Eq -- "$1" "$log" || complain "no line $1"; }
expect_case() { grep -Eq -- "$1" "$TEST_TMPDIR/results.xml" || complain "no case $1 in $(cat "$TEST_TMPDIR/results.xml")"; }

# One boot: a test that fails or hangs does not keep the next from being run.
expect_status 1 --limit-seconds 6 "$samples/fails" "$samples/hangs" "$samples/cases_test" "$samples/passes"
expect_line '^rxe_machine: FAILED fails: exit status 3$'
expect_line '^fails.sh: this goes to standard error$'
expect_line '^rxe_machine: FAILED hangs: ended after its limit of 6 s$'
expect_line '^hangs.sh: begins to wait$'
expect_line '^rxe_machine: FAILED cases_test: exit status 1$'
expect_line '^passes.sh: here I am$'
expect_line '^rxe_machine: PASSED passes \([0-9.]+ s\)$'
expect_case '<testcase [^>]*name="passes"[^>]*/>'
expect_case '<testcase [^>]*name="fails"[^>]*><failure message="exit status 3"'
expect_case '<testcase name="Passes" [^>]*classname="CasesTest"'
expect_case '<skipped message="[^"]*as it should be'
[[ $(grep -o '<failure' "$TEST_TMPDIR/results.xml" | wc -l) == 3 ]] || complain "not three failures in $(cat "$TEST_TMPDIR/results.xml")"

# One command: what it prints and its exit status come through.
expect_status 7 -- bash -c 'echo "to standard output"; echo "to standard error" >&2; exit 7'
expect_line '^to standard output$'
expect_line '^to standard error$'

# A machine that does not boot is a failure, and shows its console; one that takes too long is ended.
printf 'this is no archive' >"$TEST_TMPDIR/bad_initrd"
expect_status 125 --initrd "$TEST_TMPDIR/bad_initrd" --boot-seconds 100 "$samples/passes"
expect_line '^rxe_machine: the machine ended before it had booted$'
expect_line 'Kernel panic'
expect_status 125 --boot-seconds 1 "$samples/passes"
expect_line '^rxe_machine: the machine did not boot within 1 s'

# A machine that ends in the middle of a test, too, and the tests that it did not come to have failed.
expect_status 125 -- bash -c 'echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger'
expect_line '^rxe_machine: the machine ended before its tests had'
expect_line 'Kernel panic'

expect_status 2
expect_line 'there is nothing to run'
expect_status 2 --devices 0 "$samples/passes"
expect_line "--devices takes a number from 1 to 64, not '0'"
expect_status 2 --memory=1024 "$samples/passes"
expect_line 'there is no option --memory'
expect_status 2 "$samples/not_there"
expect_line 'there is no executable .*not_there'
expect_status 0 --help
expect_line '^usage: rxe_machine'

((failures == 0))
