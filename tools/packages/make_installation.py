"""Writes the tarball and the Debian package: all programs, their manual pages and completions, libtensorhub.so, its header,
pkg-config and CMake files.

The tarball may be unpacked anywhere; the Debian package has the same files below /usr. The same inputs give the same
bytes: entries are sorted, and have one date and one owner.
"""
import argparse
import gzip
import io
import pathlib
import tarfile
import tempfile

from tools.packages import command_help

NAME = "tensorhub"
COMMANDS = ["tensorhub_server", "tensorhub_worker", "th"]
# What programs start beside themselves: by the path of the file that has them all, whatever link they came by.
STARTED = ["controlled_rank", "tensorhub_server"]

PKG_CONFIG = """\
prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: TensorHub
Description: Moves LLM weights between RL trainers and rollouts: the C interface
Version: %s
Cflags: -I${includedir}
Libs: -L${libdir} -ltensorhub
"""

CMAKE_CONFIG = """\
# find_package(TensorHub) gives the target TensorHub::tensorhub: the C interface.
get_filename_component(_tensorhub_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET TensorHub::tensorhub)
  add_library(TensorHub::tensorhub SHARED IMPORTED)
  set_target_properties(TensorHub::tensorhub PROPERTIES
    IMPORTED_LOCATION "${_tensorhub_prefix}/lib/libtensorhub.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tensorhub_prefix}/include")
endif()
unset(_tensorhub_prefix)
"""

CMAKE_VERSION = """\
set(PACKAGE_VERSION "%s")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""

# glibc 2.34 is what elf_versions_test holds the binaries to.
CONTROL = """\
Package: tensorhub
Version: %s
Architecture: amd64
Maintainer: The TensorHub developers <developers@tensorhub.invalid>
Installed-Size: %d
Depends: libc6 (>= 2.34), libgcc-s1
Section: net
Priority: optional
Description: moves LLM weights between RL trainers and rollouts
 The reference server, the worker, the command th, and the C interface as a
 shared library with its header.
"""


class Tree:
    """Files and links by path, as a tar archive has them."""

    def __init__(self):
        self._entries = {}  # path: (bytes, mode), or (target of a link, None)

    def add(self, path, data, mode=0o644):
        self._entries[path] = (data, mode)

    def link(self, path, target):
        self._entries[path] = (target, None)

    def bytes(self):
        return sum(len(data) for data, mode in self._entries.values() if mode is not None)

    def tar(self, root):
        """The gzip-compressed archive, every path below `root`."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
            folders = {str(parent) for path in self._entries for parent in pathlib.PurePosixPath(root, path).parents}
            for folder in sorted(folders - {".", "/"}):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for path, (content, mode) in sorted(self._entries.items()):
                entry = tarfile.TarInfo(str(pathlib.PurePosixPath(root, path)))
                if mode is None:
                    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, content, 0o777
                    archive.addfile(entry)
                else:
                    entry.size, entry.mode = len(content), mode
                    archive.addfile(entry, io.BytesIO(content))
        return gzip.compress(raw.getvalue(), compresslevel=9, mtime=0)


def add_help(tree, programs, version):
    """Manual pages, and completions for bash and fish, of each command; `programs` is the file that has them all."""
    with tempfile.TemporaryDirectory() as folder:
        for name in COMMANDS:
            program = pathlib.Path(folder, name)
            program.symlink_to(programs.resolve())
            command = command_help.ask(program)
            page = command_help.manual_page(command, version).encode()
            tree.add("share/man/man1/%s.1.gz" % name, gzip.compress(page, compresslevel=9, mtime=0))
            tree.add("share/bash-completion/completions/" + name, command_help.bash_completion(command).encode())
            tree.add("share/fish/vendor_completions.d/%s.fish" % name, command_help.fish_completion(command).encode())


def installation(arguments):
    tree = Tree()
    add_help(tree, arguments.programs, arguments.version)
    tree.add("lib/tensorhub/tensorhub", arguments.programs.read_bytes(), 0o755)
    for name in STARTED:
        tree.link("lib/tensorhub/" + name, "tensorhub")
    for name in COMMANDS:
        tree.link("bin/" + name, "../lib/tensorhub/tensorhub")
    tree.add("include/th/c_interface/tensorhub.h", arguments.header.read_bytes())
    tree.add("lib/libtensorhub.so", arguments.library.read_bytes())
    tree.add("lib/pkgconfig/tensorhub.pc", (PKG_CONFIG % arguments.version).encode())
    tree.add("lib/cmake/TensorHub/TensorHubConfig.cmake", CMAKE_CONFIG.encode())
    tree.add("lib/cmake/TensorHub/TensorHubConfigVersion.cmake", (CMAKE_VERSION % arguments.version).encode())
    tree.add("share/doc/tensorhub/copyright", arguments.license.read_bytes())
    return tree


def debian_package(tree, version):
    """An ar archive of three members, as deb(5) says."""
    control = Tree()
    control.add("control", (CONTROL % (version, -(-tree.bytes() // 1024))).encode())
    package = b"!<arch>\n"
    for name, data in (("debian-binary", b"2.0\n"), ("control.tar.gz", control.tar(".")), ("data.tar.gz", tree.tar("./usr"))):
        package += ("%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name, 0, 0, 0, "100644", len(data))).encode() + data
        package += b"\n" * (len(data) % 2)
    return package


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--tarball", type=pathlib.Path, required=True, help="to be written")
    parser.add_argument("--deb", type=pathlib.Path, required=True, help="to be written")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libtensorhub.so, stripped")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="//th/programs:tensorhub, stripped")
    parser.add_argument("--header", type=pathlib.Path, required=True, help="tensorhub.h")
    parser.add_argument("--license", type=pathlib.Path, required=True)
    arguments = parser.parse_args()

    tree = installation(arguments)
    arguments.tarball.write_bytes(tree.tar("%s-%s" % (NAME, arguments.version)))
    arguments.deb.write_bytes(debian_package(tree, arguments.version))


if __name__ == "__main__":
    main()
