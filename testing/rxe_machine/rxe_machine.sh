#!/usr/bin/env bash
# Runs tests in a machine with Soft-RoCE devices, under QEMU. See README.md; tests are written down with rxe_test.bzl.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: rxe_machine [OPTION...] TEST...
       rxe_machine [OPTION...] -- COMMAND [ARG...]

Boots Linux under QEMU with RDMA devices rxe0, rxe1, ... (Soft-RoCE, one subnet, addresses 10.0.0.1, 10.0.0.2, ...), runs each
TEST there (an executable of this machine's files), and says what each came to. With -- it runs one command instead,
as in:  bazel run //testing/rxe_machine -- -- ibv_devinfo

The guest sees this machine's files where they are; what it writes is lost, but for what tests leave in
$TEST_UNDECLARED_OUTPUTS_DIR. Commands are the guest's own: bash, BusyBox, iproute2, libibverbs's, perftest.

  --devices N          RDMA devices (2)
  --memory-mib N       memory of the machine (1024)
  --processors N       virtual processors (2)
  --limit-seconds N    limit of each test (60)
  --boot-seconds N     limit of the boot (120)
  --mtu BYTES          of the network devices (9000: RDMA messages are cut at 4096)
  --link-rate RATE     caps each device's link, both ways, as in 1gbit
  --netem WORDS        delay and loss on each device's way out, as tc-netem(8) takes them: "delay 30ms"
  --initrd FILE        boots this initial file system instead
  --show-console       prints the guest's console at the end, also when all is well

Exit status: 0 when every test passed, 1 when one failed, 2 when the call is wrong, 125 when the machine did not boot or did not
last; with -- COMMAND the command's own.
EOF
}

fail_usage() {
  echo "rxe_machine: $*" >&2
  echo "rxe_machine --help says more" >&2
  exit 2
}

machine_failed=125
shutdown_seconds=30 # for the guest to end after its last test
kill_grace_seconds=10

# ---- the call ------------------------------------------------------------------------------------------------------

devices=2 memory_mib=1024 processors=2 limit_seconds=60 boot_seconds=120 mtu=9000
link_rate="" netem="" initrd="" show_console=false is_command=false

number_of() { # OPTION VALUE LEAST MOST
  if ! [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || (($2 < $3 || $2 > $4)); then
    fail_usage "$1 takes a number from $3 to $4, not '$2'"
  fi
}

while (($#)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --show-console)
      show_console=true
      shift
      continue
      ;;
    --)
      is_command=true
      shift
      break
      ;;
    --*=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    --*) (($# > 1)) || fail_usage "$1 takes a value" ;;
    *) break ;;
  esac
  case $1 in
    --devices) number_of "$1" "$2" 1 64 && devices=$2 ;;
    --memory-mib) number_of "$1" "$2" 256 65536 && memory_mib=$2 ;;
    --processors) number_of "$1" "$2" 1 64 && processors=$2 ;;
    --limit-seconds) number_of "$1" "$2" 1 86400 && limit_seconds=$2 ;;
    --boot-seconds) number_of "$1" "$2" 1 86400 && boot_seconds=$2 ;;
    --mtu) number_of "$1" "$2" 576 9000 && mtu=$2 ;;
    --link-rate) link_rate=$2 ;;
    --netem) netem=$2 ;;
    --initrd) initrd=$2 ;;
    *) fail_usage "there is no option $1" ;;
  esac
  shift 2
done
(($#)) || fail_usage "there is nothing to run"

tests=()
if $is_command; then
  printf -v command '%q ' "$@"
  tests=("$command")
else
  for path; do
    [[ -x $path && ! -d $path ]] || fail_usage "there is no executable $path"
    printf -v command '%q ' "$(realpath --no-symlinks "$path")"
    tests+=("$command")
  done
fi

# `bazel run` puts commands elsewhere than where the user is.
work_folder=${BUILD_WORKING_DIRECTORY:-$PWD}
case $work_folder/ in
  /bin/* | /sbin/* | /lib/* | /lib64/* | /usr/* | /etc/* | /proc/* | /sys/* | /dev/* | /run/*)
    fail_usage "$work_folder cannot be seen in the machine, which has a /${work_folder#/} of its own; work elsewhere"
    ;;
esac

# ---- the machine ---------------------------------------------------------------------------------------------------

self=$(realpath --no-symlinks "$0")
runfiles=${RUNFILES_DIR:-${TEST_SRCDIR:-$self.runfiles}}
here=$runfiles/tensorhub/testing/rxe_machine
qemu=$runfiles/qemu/qemu.sh
kernel=$runfiles/soft_roce_kernel/vmlinux
initrd=${initrd:-$here/initrd.cpio}
for file in "$qemu" "$kernel" "$initrd"; do
  [[ -e $file ]] || fail_usage "there is no $file; is this run by bazel, or from bazel-bin?"
done

scratch=$(mktemp -d "${TEST_TMPDIR:-${TMPDIR:-/tmp}}/rxe_machine.XXXXXX")
machine=""
# shellcheck disable=SC2317  # called by the trap
clean_up() {
  if [[ $machine ]]; then kill "$machine" 2>/dev/null || true; fi
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 143' TERM INT

# What the guest reads; see guest/init.
shared=$scratch/shared
mkdir "$shared" "$shared/outputs" "$shared/results"
declare -p devices mtu limit_seconds link_rate netem work_folder tests >"$shared/settings"
for variable in $(compgen -e); do
  case $variable in
    TEST_TMPDIR | TEST_*_FILE | TEST_*_DIR | TEST_SHARD* | TEST_TOTAL_SHARDS) ;;
    TEST_* | TESTBRIDGE_* | GTEST_* | TH_* | RUNFILES_*) declare -p "$variable" ;;
  esac
done >"$shared/environment"

start_machine() {
  local overall=$((boot_seconds + ${#tests[@]} * (limit_seconds + kill_grace_seconds) + shutdown_seconds))
  local machine_type=(-machine "pc,usb=off,vmport=off" -accel "tcg,thread=multi,tb-size=256" -cpu max)
  local nothing_else=(-nodefaults -no-user-config -nic none -display none -no-reboot)
  local boot=(-kernel "$kernel" -initrd "$initrd" -append "$kernel_options")
  local files=(
    -fsdev "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap" -device "virtio-9p-pci,fsdev=host,mount_tag=host"
    -fsdev "local,id=machine,path=$shared,security_model=none" -device "virtio-9p-pci,fsdev=machine,mount_tag=machine"
  )
  local ports=(
    -serial "file:$scratch/console" -device virtio-rng-pci -device virtio-serial-pci
    -chardev "file,id=output,path=/proc/self/fd/1" -device "virtserialport,chardev=output,name=output"
  )
  # However this script ends, what it has started ends with it.
  exec setpriv --pdeathsig KILL timeout --foreground --kill-after=5 "$overall" setpriv --pdeathsig KILL \
    "$qemu" "${machine_type[@]}" -smp "$processors" -m "$memory_mib" "${nothing_else[@]}" "${boot[@]}" "${files[@]}" "${ports[@]}"
}

# No watchdog: a busy host may keep an emulated processor waiting for longer than one would bear.
kernel_options="console=ttyS0 loglevel=5 printk.devkmsg=on panic=-1 mitigations=off audit=0 apparmor=0 random.trust_cpu=on nowatchdog"
kernel_options+=" rcupdate.rcu_cpu_stall_suppress=1"

show_failure() {
  echo "rxe_machine: $*" >&2
  echo "---- the end of the guest's console" >&2
  tail -n 60 "$scratch/console" >&2 || true
  echo "---- what QEMU said" >&2
  cat "$scratch/qemu_errors" >&2
}

exec {output}< <(start_machine </dev/null 2>"$scratch/qemu_errors")
machine=$!
read_status=0
read -rt "$boot_seconds" first_line <&"$output" || read_status=$?
if ((read_status > 128)); then
  show_failure "the machine did not boot within $boot_seconds s; on a busy host raise --boot-seconds"
  exit "$machine_failed"
elif [[ $first_line != up ]]; then
  show_failure "the machine ended before it had booted"
  exit "$machine_failed"
fi
cat <&"$output" &
wait "$!" # in this way a signal ends it at once
wait "$machine" || true
machine=""

if $show_console; then cat "$scratch/console" "$shared/kernel_log" >&2 || true; fi
if [[ ${TEST_UNDECLARED_OUTPUTS_DIR-} ]]; then cp -r "$shared/outputs/." "$TEST_UNDECLARED_OUTPUTS_DIR/"; fi
lasted=true
if [[ ! -e $shared/kernel_log ]]; then
  lasted=false
  show_failure "the machine ended before its tests had"
fi

if $is_command; then
  read -r status _ <"$shared/results/0.result" || exit "$machine_failed"
  [[ $status != limit ]] || { echo "rxe_machine: ended after its limit of $limit_seconds s" >&2; exit 124; }
  exit "$status"
fi
status=0
/usr/bin/python3 "$here/results.py" --folder "$shared" --console "$scratch/console" --limit-seconds "$limit_seconds" \
  --xml "${XML_OUTPUT_FILE-}" "$@" || status=$?
$lasted || exit "$machine_failed"
exit "$status"
