"""Reads of an ELF file what a loader asks of the machine: needed libraries, symbol versions, exported symbols."""
import struct

SHT_DYNAMIC, SHT_DYNSYM, SHT_VERNEED = 6, 11, 0x6FFFFFFE
DT_NEEDED = 1
STB_LOCAL, SHN_UNDEF = 0, 0


class ElfFile:
    """A 64-bit little-endian ELF file; ValueError for anything else."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self._data = f.read()
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("%s is no 64-bit little-endian ELF file" % path)
        offset, = struct.unpack_from("<Q", self._data, 0x28)
        entry_size, count = struct.unpack_from("<HH", self._data, 0x3A)
        # type, offset, size, index of the string table, number of entries
        self._sections = []
        for i in range(count):
            kind, _, _, at, size, link, info = struct.unpack_from("<IQQQQII", self._data, offset + i * entry_size + 4)
            self._sections.append((kind, at, size, link, info))

    def _of_type(self, kind):
        return [s for s in self._sections if s[0] == kind]

    def _string(self, table, offset):
        start = self._sections[table][1] + offset
        return self._data[start:self._data.index(b"\0", start)].decode()

    def needed_libraries(self):
        """['libc.so.6', ...]: the shared libraries that are loaded with this file."""
        names = []
        for _, at, size, link, _ in self._of_type(SHT_DYNAMIC):
            for tag, value in struct.iter_unpack("<qQ", self._data[at:at + size]):
                if tag == DT_NEEDED:
                    names.append(self._string(link, value))
        return names

    def needed_versions(self):
        """[('libc.so.6', 'GLIBC_2.34'), ...]: the symbol versions that those libraries must define."""
        versions = []
        for _, at, _, link, count in self._of_type(SHT_VERNEED):
            for _ in range(count):
                _, aux_count, library, aux, following = struct.unpack_from("<HHIII", self._data, at)
                aux_at = at + aux
                for _ in range(aux_count):
                    _, _, _, name, next_aux = struct.unpack_from("<IHHII", self._data, aux_at)
                    versions.append((self._string(link, library), self._string(link, name)))
                    aux_at += next_aux
                at += following
        return versions

    def _dynamic_symbols(self):
        for _, at, size, link, _ in self._of_type(SHT_DYNSYM):
            for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", self._data[at:at + size]):
                if info >> 4 != STB_LOCAL:
                    yield self._string(link, name), section

    def exported_symbols(self):
        return sorted(name for name, section in self._dynamic_symbols() if section != SHN_UNDEF)

    def imported_symbols(self):
        return sorted(name for name, section in self._dynamic_symbols() if section == SHN_UNDEF)
