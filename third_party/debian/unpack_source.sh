#!/usr/bin/env bash
# Unpacks a Debian source package into the current folder. Run by debian_repository.
# usage: unpack_source.sh NAME.orig.tar.* [NAME.debian.tar.*]
set -euo pipefail

tar -xf "$1" --strip-components=1
if (($# > 1)); then
  tar -xf "$2"
  # Debian's own fixes, security fixes among them, in their order.
  while read -r patch _; do
    case $patch in '' | '#'*) continue ;; esac
    patch --silent -p1 <"debian/patches/$patch"
  done <debian/patches/series
  rm -rf debian
fi
