"""docs/python.md is what docs/python_reference.py makes of the docstrings; every public name has one."""
import pathlib
import sys
import unittest

from docs import python_reference

PAGE, INIT = sys.argv[1:3]


class PythonReferenceTest(unittest.TestCase):
    maxDiff = None

    def test_the_page_is_up_to_date(self):
        made = python_reference.page(pathlib.Path(INIT).parent)
        self.assertEqual(pathlib.Path(PAGE).read_text(encoding="utf-8"), made,
                         "run docs/python_reference.py th/python/tensorhub > docs/python.md")

    def test_a_docstring_keeps_its_examples_and_lists(self):
        node = python_reference.ast.parse('''
def f():
    """Does it.

        f()

    Attributes:
      a: one
        and more.
    """
''').body[0]
        self.assertEqual(python_reference.prose(node), "Does it.\n\n```python\nf()\n```\n\n- a: one\n  and more.")

    def test_what_has_no_docstring_is_named(self):
        with self.assertRaisesRegex(ValueError, "f has no docstring"):
            python_reference.prose(python_reference.ast.parse("def f(): pass").body[0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
