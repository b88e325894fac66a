# Installs packages of Debian that a test needs; for scripts that run tests outside of Bazel.
#
#   install_packages testing/prometheus/run prometheus python3-yaml
#
# The first argument names the caller in messages. Runs apt-get as root or with sudo, and only if a package is missing.
# A service that comes with a package is neither started nor enabled: a test starts its own processes.
# shellcheck shell=bash

install_packages() {
  local caller=$1 package status missing=() as_root=()
  shift
  for package; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) || true
    [[ $status == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "$caller: not root, and there is no sudo; run as root: apt-get install ${missing[*]}" >&2
      return 2
    fi
    as_root=(sudo)
  fi
  echo "$caller: installing ${missing[*]}" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive bash -euo pipefail -s -- "${missing[@]}" <<'AS_ROOT'
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101  # no service is started\n' >"$policy"
  chmod 755 "$policy"
fi
apt-get -qq update </dev/null >/dev/null
apt-get -qq -y --no-install-recommends install "$@" </dev/null >/dev/null
for package; do
  for unit in $(dpkg-query --listfiles "$package" | sed -n 's|.*/systemd/system/\([^/]*\.service\)$|\1|p'); do
    case $package in
      systemd*) ;;
      *) systemctl disable --quiet "$unit" 2>/dev/null || true ;;
    esac
  done
done
AS_ROOT
}
