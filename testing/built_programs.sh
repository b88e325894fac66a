# Builds the programs; for scripts that test them outside of Bazel.
#
#   build_programs FOLDER     # tensorhub_server, tensorhub_worker and th of the checkout in this folder, copied into FOLDER
# shellcheck shell=bash

build_programs() {
  local folder=$1 program bin startup
  local -a programs=(th/server/tensorhub_server th/worker/tensorhub_worker th/cli/th)
  tools/setup --quiet
  read -ra startup <<<"${TH_BAZEL_STARTUP-}"
  bazel "${startup[@]}" build --show_result=0 --ui_event_filters=-info "${programs[@]}" >&2
  bin=$(bazel "${startup[@]}" info bazel-bin 2>/dev/null)
  mkdir -p "$folder"
  for program in "${programs[@]}"; do cp "$bin/$program" "$folder"; done
}
