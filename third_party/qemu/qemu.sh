#!/bin/sh
# The unpacked QEMU, on its own libraries and firmware.
case $0 in */*) root=${0%/*} ;; *) root=. ;; esac
export QEMU_MODULE_DIR="$root/modules"
exec "$root/lib/ld-linux-x86-64.so.2" --library-path "$root/lib" "$root/bin/qemu-system-x86_64" -L "$root/firmware" "$@"
