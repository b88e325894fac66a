"""Tests trim.py on a folder of its own."""
import contextlib
import io
import os
import tempfile
import unittest

from tools.disk_cache import trim


class TrimTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def add(self, name, size, used):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * size)
        os.utime(path, (used, used))

    def left(self):
        return sorted(os.path.relpath(path, self.folder) for _, _, path in trim.entries(self.folder))

    def test_what_was_not_used_for_longest_goes_first(self):
        self.add("cas/old", 10, used=1)
        self.add("ac/middle", 10, used=2)
        self.add("cas/new", 10, used=3)
        self.assertEqual(trim.trim(self.folder, 25), 10)
        self.assertEqual(self.left(), ["ac/middle", "cas/new"])
        self.assertEqual(trim.trim(self.folder, 9), 20)
        self.assertEqual(self.left(), [])

    def test_a_cache_within_its_limit_stays(self):
        self.add("cas/a", 10, used=1)
        self.assertEqual(trim.trim(self.folder, 10), 0)
        self.assertEqual(self.left(), ["cas/a"])

    def test_says_what_went(self):
        self.add("cas/a", 3000, used=1)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            trim.main([self.folder, "--limit-gb", "0.000001"])
        self.assertIn("removed 0.0 GB", said.getvalue())
        self.assertEqual(self.left(), [])

    def test_a_folder_that_is_not_there_is_no_error(self):
        trim.main([os.path.join(self.folder, "none")])

    def test_refuses_a_limit_of_nothing(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            trim.main([self.folder, "--limit-gb", "0"])
        self.assertIn("must be more than 0", said.getvalue())


if __name__ == "__main__":
    unittest.main()
