"""Fails, naming the path, when a package of this checkout breaks a rule of rules.py."""
import os
import pathlib
import unittest

from tools.dependency_rules import check

# The sources themselves, which this test's copy of check.py links to: every BUILD file counts, declared or not.
ROOT = pathlib.Path(os.path.realpath(os.path.join(os.path.dirname(__file__), "rules.py"))).parent.parent.parent


class DependencyRulesTest(unittest.TestCase):

    def test_tree_is_found(self):
        self.assertTrue((ROOT / "WORKSPACE").is_file(), ROOT)
        self.assertGreater(len(check.Tree(ROOT).packages), 10)

    def test_no_package_breaks_a_rule(self):
        self.assertEqual("\n".join(check.violations(ROOT)), "")


if __name__ == "__main__":
    unittest.main()
