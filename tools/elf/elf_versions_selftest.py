"""Tests the ELF reader and elf_versions.py on a careful and on a careless shared object."""
import ctypes
import os
import unittest

from tools.elf import elf
from tools.elf import elf_versions

HERE = os.path.dirname(__file__)
CAREFUL = os.path.join(HERE, "libsample.so")
CARELESS = os.path.join(HERE, "sample_leaky.so")


class ElfTest(unittest.TestCase):

    def test_careful_object_exports_its_interface_only(self):
        self.assertEqual(elf.ElfFile(CAREFUL).exported_symbols(), ["sample_text"])

    def test_careful_object_needs_only_what_every_machine_has(self):
        self.assertEqual(elf_versions.problems(CAREFUL, "2.34", [], ["sample_*"]), [])

    def test_careful_object_works_when_loaded(self):
        buffer = ctypes.create_string_buffer(32)
        self.assertEqual(ctypes.CDLL(CAREFUL).sample_text(7, buffer, 32), 8)
        self.assertEqual(buffer.value, b"sample 7")

    def test_stray_exports_are_named(self):
        found = elf_versions.problems(CARELESS, "2.34", ["libresolv.so.2"], ["sample_*"])
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], r"exports \d+ symbols beside sample_\*, the first: \w+")

    def test_foreign_library_is_named(self):
        self.assertIn("needs the library libresolv.so.2", elf_versions.problems(CARELESS, "2.34", [], None))

    def test_newer_glibc_is_named(self):
        found = elf_versions.problems(CAREFUL, "2.2", [], None)
        self.assertRegex("\n".join(found), r"needs GLIBC_2\.\d+(\.\d+)? of libc\.so\.6, newer than GLIBC_2\.2")

    def test_missing_interface_is_named(self):
        self.assertIn("exports nothing that is called th_*", elf_versions.problems(CAREFUL, "2.34", [], ["th_*"]))

    def test_versions_compare_as_numbers(self):
        self.assertLess(elf_versions.glibc_number("GLIBC_2.4"), elf_versions.glibc_number("GLIBC_2.34"))
        self.assertIsNone(elf_versions.glibc_number("GCC_3.0"))
        self.assertIsNone(elf_versions.glibc_number("GLIBC_PRIVATE"))

    def test_other_files_are_refused(self):
        with self.assertRaises(ValueError):
            elf.ElfFile(__file__)


if __name__ == "__main__":
    unittest.main()
