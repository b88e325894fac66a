#!/usr/bin/env bash
# Arranges the unpacked gcc packages as a sysroot that compiles on its own libraries, whatever the host has.
# Run by debian_repository in the root of @gcc12.
set -euo pipefail

ln -s usr/lib lib
ln -s usr/lib64 lib64
rm -rf usr/share etc usr/lib/x86_64-linux-gnu/gconv usr/lib/x86_64-linux-gnu/audit

# What the compiler and binutils themselves are linked with. Not libc: they run on the host's.
mkdir hostlib
for library in isl mpc mpfr gmp zstd z bfd opcodes ctf ctf-nobfd jansson gprofng cc1; do
  for file in usr/lib/x86_64-linux-gnu/lib"$library".so.* usr/lib/x86_64-linux-gnu/lib"$library"-*.so; do
    if [[ -e $file ]]; then cp -a "$file" hostlib/; fi
  done
done

# What files include that find no precompiled headers for their flags: see BUILD.bazel.
mkdir not_precompiled
: >not_precompiled/precompiled.h

# Holds links to the headers of Abseil and GoogleTest (repositories.bzl), and exists without them too.
mkdir -p libraries

# bin/gcc and bin/ld are scripts of ours; they look at the name that they are called by.
for tool in cpp gcov; do ln -s gcc "bin/$tool"; done
for tool in ar dwp llvm-cov nm objcopy objdump strip; do ln -s ld "bin/$tool"; done

# See arc4random.c: the libstdc++ that goes into every binary resolves it within itself.
headers=(-nostdinc -isystem usr/lib/gcc/x86_64-linux-gnu/12/include -isystem usr/include/x86_64-linux-gnu -isystem usr/include)
bin/gcc -O2 -fPIC "${headers[@]}" -c arc4random.c -o arc4random.o
bin/ar rsD usr/lib/gcc/x86_64-linux-gnu/12/libstdc++.a arc4random.o
rm arc4random.c arc4random.o
