#!/usr/bin/python3
"""Writes an archive that Linux unpacks into its first root file system, the same bytes for the same files.

usage: cpio_archive.py OUT PATH_IN_ARCHIVE=SOURCE...

SOURCE is a file, or a folder that is added with all that is below it. A symbolic link stays one below a folder, and is
followed where it is SOURCE itself. Files belong to root; those that their owner may execute, everyone may.
"""
import os
import stat
import sys


def record(number, path, mode, data):
    """One entry of the format "newc": a header of hexadecimal numbers, the name, the data, each padded to 4 bytes."""
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    # Number, mode, owner, group, links, time, size, device of the file (2), device that it stands for (2), name's
    # length, checksum (of another format).
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return padded(header + name) + padded(data)


def padded(data):
    return data + b"\0" * (-len(data) % 4)


class Archive:

    def __init__(self):
        self._entries = {}  # path: (mode, data)

    def add(self, path, source):
        """Adds `source`, a file or a folder, as `path`, and the folders above it."""
        path = path.strip("/")
        if os.path.isdir(source):
            self._add_folder(path)
            for name in os.listdir(source):
                self._add_below(os.path.join(path, name), os.path.join(source, name))
        else:
            self._add_file(path, source)

    def _add_below(self, path, source):
        if os.path.islink(source):
            self._entries[path] = (stat.S_IFLNK | 0o777, os.readlink(source).encode())
        else:
            self.add(path, source)

    def _add_folder(self, path):
        while path:
            self._entries.setdefault(path, (stat.S_IFDIR | 0o755, b""))
            path = os.path.dirname(path)

    def _add_file(self, path, source):
        self._add_folder(os.path.dirname(path))
        executable = os.stat(source).st_mode & stat.S_IXUSR
        with open(source, "rb") as f:
            self._entries[path] = (stat.S_IFREG | (0o755 if executable else 0o644), f.read())

    def bytes(self):
        records = [record(number, path, mode, data)
                   for number, (path, (mode, data)) in enumerate(sorted(self._entries.items()), start=1)]
        return b"".join(records + [record(0, "TRAILER!!!", 0, b"")])


def main():
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    archive = Archive()
    for argument in sys.argv[2:]:
        path, separator, source = argument.partition("=")
        if not separator:
            sys.exit("cpio_archive.py: expected PATH_IN_ARCHIVE=SOURCE, got %r" % argument)
        archive.add(path, source)
    with open(sys.argv[1], "wb") as out:
        out.write(archive.bytes())


if __name__ == "__main__":
    main()
