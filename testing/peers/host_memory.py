"""Memory of a holder or a reader: private or shared, with its address, and every page there before a clock starts."""
import ctypes
import mmap
import os

PAGE_BYTES = mmap.PAGESIZE
FEWEST_EVICTED_BYTES = 64 << 20
MOST_EVICTED_BYTES = 512 << 20


class HostMemory:
    """`size` bytes, all pages there. `view` is a memoryview of them, `address` where they lie.

    Without `fd` they are private, zeroed, and in huge pages where the machine gives them, as TensorHub's own memory is.
    With the descriptor of a file of that size they are the file's memory, shared with whoever else maps it.
    """

    def __init__(self, size, fd=-1):
        if fd < 0:
            self.mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.mapping.madvise(mmap.MADV_HUGEPAGE)
        else:
            self.mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.size = size
        self.view = memoryview(self.mapping)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        if fd < 0:
            ctypes.memset(self.address, 0, size)


def evicted_bytes(cache_size):
    """How much is written to push all else out of a last-level cache, of sysfs's text for its size ("32768K")."""
    text = cache_size.strip()
    size = int(text[:-1]) << 10 if text.endswith("K") else int(text or 0)
    return min(max(2 * size, FEWEST_EVICTED_BYTES), MOST_EVICTED_BYTES)


def evict_caches():
    """Writes and reads other memory, until nothing else is cached; then frees it."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size", encoding="ascii") as file:
            size = evicted_bytes(file.read())
    except OSError:  # a machine without a third level
        size = FEWEST_EVICTED_BYTES
    other = HostMemory(size)
    ctypes.memset(other.address, 1, size)
    ctypes.memmove(other.address, other.address + size // 2, size // 2)


def in_threads(size, threads):
    """[begin, end) of each thread's part, at page boundaries; as many as have anything."""
    pages = -(-size // PAGE_BYTES)
    bounds = [min(size, pages * i // threads * PAGE_BYTES) for i in range(threads)] + [size]
    return [(begin, end) for begin, end in zip(bounds, bounds[1:]) if begin < end]


def pid_path(fd):
    """Where processes of the same user open this process's descriptor."""
    return "/proc/%d/fd/%d" % (os.getpid(), fd)
