#!/usr/bin/env bash
# Makes the root file system of the machine for tests from unpacked packages. Run by debian_repository in the root of
# @soft_roce_userland, whose packages are below root/.
set -euo pipefail

cd root
# As on an installed Debian, /bin and /usr/bin are one folder.
for folder in bin sbin; do
  mkdir -p "usr/$folder"
  cp -a "$folder/." "usr/$folder/"
  rm -r "$folder"
  ln -s "usr/$folder" "$folder"
done
for folder in lib lib64; do ln -s "usr/$folder" "$folder"; done

rm -rf usr/share usr/include usr/lib/locale usr/lib/x86_64-linux-gnu/{gconv,audit} var
find . -name '*.a' -delete
find etc -mindepth 1 -maxdepth 1 ! -name iproute2 ! -name libibverbs.d -exec rm -r {} +

rm -f usr/sbin/arpd usr/bin/ss # they alone want Berkeley DB and Kerberos; there is BusyBox's netstat
libraries=usr/lib/x86_64-linux-gnu
for command in usr/bin/* usr/sbin/*; do
  missing=$("$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" --list "./$command" 2>/dev/null | grep 'not found\| => /' |
    grep -v "=> $libraries/") || continue
  echo "no pinned package has what $command needs; add it to \"soft_roce_userland\" in third_party/debian/packages.bzl:" >&2
  echo "$missing" >&2
  exit 1
done

# BusyBox stands in for every command that no package brings.
while read -r command; do
  [[ -e usr/bin/$command || -e usr/sbin/$command ]] || ln -s busybox "usr/bin/$command"
done < <(usr/bin/busybox --list)

echo "root:x:0:0:root:/root:/bin/bash" >etc/passwd
echo "root:x:0:" >etc/group
echo "127.0.0.1 localhost" >etc/hosts
echo "hosts: files" >etc/nsswitch.conf
ln -s /proc/mounts etc/mtab

cd ..
/usr/bin/python3 cpio_archive.py userland.cpio /=root
rm -r root cpio_archive.py
