#!/usr/bin/python3
"""Takes from an unpacked Debian kernel package what the machine for tests boots.

usage: take_kernel.py UNPACKED OUT MODULE...

Writes OUT/vmlinux, the uncompressed kernel (an emulated processor would take seconds to uncompress it), and OUT/modules:
the modules named and those that they need, and the file `order`, which lists them so that each comes after those
that it needs.
"""
import lzma
import pathlib
import re
import shutil
import struct
import sys


class KernelError(Exception):
    """Something that the user has to do; the message says what."""


def uncompressed(image):
    """The ELF file within a bzImage (Linux's Documentation/x86/boot.rst has the offsets)."""
    setup_sectors = image[0x1F1] or 4
    payload_offset, payload_length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + payload_offset
    payload = image[begin:begin + payload_length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise KernelError("the kernel is not compressed with xz; teach third_party/soft_roce/take_kernel.py what it is")
    # Behind the stream stands the uncompressed length, which is no part of it.
    return lzma.LZMADecompressor().decompress(payload)


def module_name(path_or_name):
    """Modules are named with underscores, their files also with hyphens."""
    return pathlib.PurePath(path_or_name).name.partition(".ko")[0].replace("-", "_")


def needed_by(module_file):
    """Names of the modules whose symbols this one uses, from what the kernel's build wrote into it."""
    content = module_file.read_bytes()
    if not content.startswith(b"\x7fELF"):
        raise KernelError("%s is compressed; teach third_party/soft_roce/take_kernel.py to uncompress it" % module_file)
    match = re.search(rb"\0depends=([^\0]*)\0", content)
    return [module_name(n) for n in match.group(1).decode().split(",") if n] if match else []


def in_order(wanted, files, built_in):
    """Files of the modules wanted, each after those that it needs."""
    order = {}

    def take(name, needer):
        if name in order or name in built_in:
            return
        if name not in files:
            raise KernelError("there is no module %s, which %s needs" % (name, needer))
        for below in needed_by(files[name]):
            take(below, name)
        order[name] = files[name]

    for name in wanted:
        take(module_name(name), "the machine for tests")
    return list(order.values())


def main():
    if len(sys.argv) < 4 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    unpacked, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    try:
        image, = (unpacked / "boot").glob("vmlinuz-*")
        tree, = (unpacked / "usr/lib/modules").iterdir()
        files = {module_name(f): f for f in tree.rglob("*.ko*")}
        built_in = {module_name(line) for line in (tree / "modules.builtin").read_text().split()}
        modules = in_order(sys.argv[3:], files, built_in)
        (out / "modules").mkdir(parents=True)
        (out / "vmlinux").write_bytes(uncompressed(image.read_bytes()))
        for module in modules:
            shutil.copyfile(module, out / "modules" / module.name)
        (out / "modules/order").write_text("".join(m.name + "\n" for m in modules))
    except KernelError as error:
        sys.exit("take_kernel.py: %s" % error)


if __name__ == "__main__":
    main()
