#!/usr/bin/env bash
# Unpacks binary packages into one folder. Run by debian_repository.
# usage: unpack_packages.sh FOLDER PACKAGE.deb...
set -euo pipefail

folder=$1
shift
mkdir -p "$folder"
for deb; do
  dpkg-deb -x "$deb" "$folder"
done
cd "$folder"

# On an installed system /lib and /usr/lib are one folder, and so are /lib64 and /usr/lib64.
for lib in lib lib64; do
  if [[ -d $lib ]]; then
    mkdir -p "usr/$lib"
    cp -a "$lib/." "usr/$lib/"
    rm -rf "$lib"
  fi
done
rm -rf usr/share/doc usr/share/man usr/share/lintian
# A package's own BUILD files would cut Bazel's globs.
find . \( -name BUILD -o -name BUILD.bazel -o -name WORKSPACE \) -delete
# Absolute links point out of the repository: turn them into it.
find . -type l | while read -r link; do
  target=$(readlink "$link")
  case $target in
    /lib/* | /lib64/*) ln -sfnr "./usr$target" "$link" ;;
    /*) ln -sfnr ".$target" "$link" ;;
  esac
done
