#!/usr/bin/env python3
"""Fails when a binary needs a newer machine, or another library, than it may. See //tools:elf_test.bzl."""
import argparse
import fnmatch
import sys

from tools.elf import elf

# What every Linux machine with glibc has.
SYSTEM_LIBRARIES = ["ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0",
                    "librt.so.1"]


def glibc_number(version):
    """'GLIBC_2.34' -> (2, 34); None for a version of something else, and for GLIBC_PRIVATE."""
    prefix, _, number = version.partition("_")
    if prefix != "GLIBC" or not number[:1].isdigit():
        return None
    return tuple(int(part) for part in number.split("."))


def problems(path, max_glibc, libraries, exports):
    """What is wrong with one file, one line each."""
    file = elf.ElfFile(path)
    limit = glibc_number("GLIBC_" + max_glibc)
    found = []
    for library, version in file.needed_versions():
        number = glibc_number(version)
        if number and number > limit:
            found.append("needs %s of %s, newer than GLIBC_%s" % (version, library, max_glibc))
        if version == "GLIBC_PRIVATE":
            found.append("needs GLIBC_PRIVATE of %s: it runs with one build of glibc only" % library)
        if library == "libstdc++.so.6":
            found.append("needs %s of libstdc++.so.6, which must be linked statically" % version)
    for library in file.needed_libraries():
        if library not in SYSTEM_LIBRARIES + libraries:
            found.append("needs the library %s" % library)
    if exports is not None:
        exported = file.exported_symbols()
        stray = [s for s in exported if not any(fnmatch.fnmatchcase(s, e) for e in exports)]
        if stray:
            found.append("exports %d symbols beside %s, the first: %s" % (len(stray), " ".join(exports), stray[0]))
        if len(stray) == len(exported):
            found.append("exports nothing that is called %s" % " ".join(exports))
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-glibc", default="2.34", help="newest glibc that a binary may need (%(default)s)")
    parser.add_argument("--library", action="append", default=[], help="a further library that may be needed")
    parser.add_argument("--export", action="append", default=None, help="pattern of the symbols that may be exported")
    parser.add_argument("binary", nargs="+")
    options = parser.parse_args(arguments)
    failed = False
    for path in options.binary:
        for problem in problems(path, options.max_glibc, options.library, options.export):
            print("%s: %s" % (path, problem))
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
