"""Keeps Bazel's disk cache within a limit: Bazel 4 only ever adds to it.

What was not used for longest goes first. A result that is gone is built again; a build that runs meanwhile is not harmed.
"""
import argparse
import os
import shutil
import sys

GIGABYTE = 10**9
FREE_FOR_A_RUN = 12 * GIGABYTE  # what one output base with every test takes


def entries(folder):
    """(last use, bytes, path) of every file; one that goes meanwhile is left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            yield max(status.st_atime, status.st_mtime), status.st_size, path


def trim(folder, limit):
    """Removes files until what is left is `limit` bytes or less; returns how many bytes went."""
    files = sorted(entries(folder))
    excess = sum(size for _, size, _ in files) - limit
    removed = 0
    for _, size, path in files:
        if removed >= excess:
            break
        try:
            os.remove(path)
        except FileNotFoundError:
            pass
        removed += size
    return removed


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="the disk cache of .bazelrc; need not exist")
    parser.add_argument("--limit-gb", type=float, default=20.0, help="(%(default)s)")
    options = parser.parse_args(arguments)
    if options.limit_gb <= 0:
        parser.error(f"--limit-gb must be more than 0, not {options.limit_gb:g}")
    if not os.path.isdir(options.folder):
        return
    removed = trim(options.folder, options.limit_gb * GIGABYTE)
    if removed > 0:
        print(f"{options.folder}: removed {removed / GIGABYTE:.1f} GB that were not used for longest", file=sys.stderr)
    free = shutil.disk_usage(options.folder).free
    if free < FREE_FOR_A_RUN:
        print(f"{options.folder}: {free / GIGABYTE:.1f} GB of the disk are free; building every test takes up to "
              f"{FREE_FOR_A_RUN / GIGABYTE:.0f} GB", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
