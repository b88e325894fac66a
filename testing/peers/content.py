"""What the bytes of a run are, so that each of them can be compared afterwards.

  content.fill(memory, version=3)
  assert content.matches(memory, version=3)

`memory` is anything that a memoryview of bytes can be had of (bytearray, mmap, a NumPy array of uint8). Block i of a
version is the version's random block with i in its first bytes: no two blocks are alike, and none is as in another
version.
"""
import random
import struct

BLOCK_BYTES = 1 << 20
NUMBER = struct.Struct("<Q")


def block_of(version):
    return bytearray(random.Random(version).randbytes(BLOCK_BYTES))


def blocks(size, version):
    """(offset, bytes) of each block; the bytes are valid until the next is asked for."""
    block = block_of(version)
    for index, offset in enumerate(range(0, size, BLOCK_BYTES)):
        NUMBER.pack_into(block, 0, index)
        yield offset, memoryview(block)[:min(BLOCK_BYTES, size - offset)]


def fill(memory, version):
    view = memoryview(memory)
    for offset, block in blocks(view.nbytes, version):
        view[offset:offset + len(block)] = block


def matches(memory, version):
    view = memoryview(memory)
    # bytes are compared at the speed of memory; views are compared one element at a time.
    return all(bytes(view[offset:offset + len(block)]) == bytes(block) for offset, block in blocks(view.nbytes, version))
