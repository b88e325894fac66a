#!/usr/bin/env bash
# Runs a test of mutable copies with one mutation switched on, and passes only if that test fails.
# See //tools:mutation_test.bzl, which writes the calls.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: run_mutant.sh MUTATION SECONDS TEST_BINARY [ARG...]

Exit status 0: the tests caught the mutation (one failed or crashed; past SECONDS they are ended, and one must have failed).
Exit status 1: the mutation survived, that is, no test has failed.
Exit status 2: the call is wrong.
EOF
}

case ${1-} in -h | --help) usage; exit 0 ;; esac
if (($# < 3)); then
  usage >&2
  exit 2
fi
mutation=$1 seconds=$2 binary=$3
shift 3
if [[ ! -x $binary ]]; then
  echo "run_mutant.sh: no test binary at $binary" >&2
  exit 2
fi

log=$(mktemp "${TEST_TMPDIR:-/tmp}/mutant.XXXXXX")
trap 'rm -f "$log"' EXIT
status=0
# Bazel's variables for results and the filter of tests are this wrapper's, not the wrapped test's.
env -u XML_OUTPUT_FILE -u GTEST_TMP_DIR -u TESTBRIDGE_TEST_ONLY \
  TH_MUTATION="$mutation" timeout --kill-after=5 "$seconds" "$binary" "$@" >"$log" 2>&1 || status=$?

if ((status == 0)); then
  cat "$log"
  echo "MUTATION SURVIVED: $mutation: every test passes although this line of the code is wrong"
  exit 1
fi
if ((status >= 125 && status <= 127)); then
  cat "$log"
  echo "run_mutant.sh: $binary could not be started" >&2
  exit 2
fi
failures=$(grep -E '^\[  FAILED  \]|CHECK|Check failed|Failure' "$log" | sort -u | head -20) || true
case $status in
  124 | 137)
    if [[ -z $failures ]]; then
      cat "$log"
      echo "MUTATION NOT JUDGED: $mutation: the tests ran past $seconds s, and none had failed"
      exit 1
    fi
    echo "mutation $mutation caught; the tests ran past $seconds s:" ;;
  *) echo "mutation $mutation caught with exit status $status:" ;;
esac
if [[ -n $failures ]]; then echo "$failures"; else tail -5 "$log"; fi
