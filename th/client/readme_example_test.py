"""The README's example is the one that is compiled."""
import re
import sys
import unittest

README, EXAMPLE = sys.argv[1:3]


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class ReadmeExampleTest(unittest.TestCase):

    def test_is_what_is_compiled(self):
        shown = re.findall(r"```cpp\n(.*?)```", text(README), re.DOTALL)
        compiled = re.findall(r"// \[README\n(.*?)// README\]", text(EXAMPLE), re.DOTALL)
        self.assertEqual(len(shown), 1)
        self.assertEqual(shown, compiled)

    def test_names_what_is_the_users_own(self):
        own = re.findall(r"^(?:void|bool) (\w+)\(", text(EXAMPLE), re.MULTILINE)
        self.assertGreater(len(own), 3)
        before = text(README).split("```cpp")[0]
        for name in own:
            self.assertIn("`%s`" % name, before)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
