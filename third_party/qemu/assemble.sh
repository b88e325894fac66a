#!/usr/bin/env bash
# Keeps of the unpacked QEMU packages what boots a kernel without display, sound or disk. Run by debian_repository in the
# root of @qemu, whose packages are below unpacked/.
set -euo pipefail

unpacked=unpacked/usr/lib/x86_64-linux-gnu
mkdir bin lib modules firmware
mv unpacked/usr/bin/qemu-system-x86_64 bin/
mv "$unpacked"/qemu/accel-tcg-x86_64.so modules/
# The ROM that starts an uncompressed kernel, and the BIOS that starts the ROM.
cp unpacked/usr/share/qemu/{pvh.bin,kvmvapic.bin} unpacked/usr/share/seabios/bios-256k.bin firmware/

# The libraries that it is linked with, each under the name that it asks for; none may come from the machine itself.
linker=lib/ld-linux-x86-64.so.2
cp -L "$unpacked/${linker#lib/}" "$linker"
"$linker" --library-path "$PWD/$unpacked" --list bin/qemu-system-x86_64 >needed
while read -r name _ path _; do
  case $path in
    "$PWD"/*) cp -L "$path" "lib/$name" ;;
    *)
      case $name in
        linux-vdso.so.1 | /*ld-linux*) ;;
        *)
          echo "no pinned package has $name, which QEMU needs; add the package to \"qemu\" in third_party/debian/packages.bzl" >&2
          exit 1
          ;;
      esac
      ;;
  esac
done <needed
rm -r needed unpacked
