# shellcheck shell=bash disable=SC2154  # tests, limit_seconds, work_folder: from /machine/settings
# Runs the tests, one after another. For test N it writes below /machine/results:
#   N.xml     by the test itself, if it is a GoogleTest
#   N.result  "STATUS SECONDS", STATUS "limit" if it ran past its limit; written last

kill_grace_seconds=5

# The commands are lines of words that `declare -p` has quoted.
run_tests() {
  local number
  mkdir -p /machine/results /machine/outputs
  mkfifo /run/never
  for ((number = 0; number < ${#tests[@]}; number++)); do
    local -a command="(${tests[number]})"
    run_test "$number" "${command[@]}"
  done
}

run_test() {
  local number=$1 result=/machine/results/$1 started=$EPOCHREALTIME pid watcher status
  shift
  in_session "$number" "$@" </dev/null >&3 2>&1 3>&- &
  pid=$!
  end_at_limit "$pid" "$result" 3>&- &
  watcher=$!
  wait "$pid"
  status=$?
  kill "$watcher" 2>/dev/null
  kill -KILL -- "-$pid" 2>/dev/null # what it has left running
  [[ ! -e $result.limit ]] || status=limit
  printf '%s %s\n' "$status" "$(seconds_since "$started")" >"$result.result"
}

# Becomes the test, in a session of its own.
in_session() {
  local number=$1
  shift
  # shellcheck source=/dev/null
  . /machine/environment
  export TEST_TMPDIR=/tmp/rxe_machine.$number XML_OUTPUT_FILE=/machine/results/$number.xml
  export TEST_UNDECLARED_OUTPUTS_DIR=/machine/outputs TH_RXE_MACHINE=1
  mkdir -p "$TEST_TMPDIR"
  cd "$work_folder" || exit 125
  exec setsid "$@"
}

end_at_limit() {
  local pid=$1 result=$2
  read -rt "$limit_seconds" _ <>/run/never
  : >"$result.limit"
  kill -TERM -- "-$pid"
  read -rt "$kill_grace_seconds" _ <>/run/never
  kill -KILL -- "-$pid"
}

seconds_since() {
  local now=$EPOCHREALTIME
  local microseconds=$((${now/./} - ${1/./}))
  printf '%d.%d' $((microseconds / 1000000)) $((microseconds / 100000 % 10))
}
