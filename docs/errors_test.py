"""The page of errors has every word that the code has, and no other."""
import argparse
import pathlib
import re
import unittest

from docs import tables


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("page", "code-words", "states", "statuses", "reasons", "events", "exit-status", "server-exit"):
        parser.add_argument("--" + name, required=True)
    return parser.parse_args()


OPTIONS = parse_arguments()


def text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def function(path, name):
    """The body of a function at the left margin."""
    found = re.findall(r"\b%s\([^)]*\) \{\n(.*?)^\}" % name, text(path), re.DOTALL | re.MULTILINE)
    if len(found) != 1:
        raise AssertionError("%s has %d functions %s" % (path, len(found), name))
    return found[0]


def enumerators(path, name):
    """{'kOk': 0, ...} of an enum whose values are given."""
    body = re.search(r"enum (?:class )?%s[^{]*\{(.*?)\}" % name, text(path), re.DOTALL).group(1)
    return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body)}


class ErrorsTest(unittest.TestCase):
    page = text(OPTIONS.page)

    def first_column(self, *header):
        (rows,) = tables.with_header(self.page, header)
        return [row[0].strip("`") for row in rows]

    def assert_every_row_is_filled(self, *header, but_for=()):
        (rows,) = tables.with_header(self.page, header)
        for row in rows:
            if row[0].strip("`") not in but_for:
                self.assertNotIn("", row)

    def test_code_words(self):
        body = function(OPTIONS.code_words, "ErrorCodeName")
        words = [word for word in re.findall(r'"([A-Z_]+)"', body) if word != "UNKNOWN"]
        self.assertGreater(len(words), 15)
        self.assertCountEqual(self.first_column("word", "happened", "what to do"), words)
        self.assert_every_row_is_filled("word", "happened", "what to do")

    def test_statuses(self):
        names = [name.removeprefix("TH_") for name in enumerators(OPTIONS.statuses, "th_status")]
        self.assertEqual(len(names), 17)
        header = ("status", "most likely causes", "what to do")
        self.assertEqual(self.first_column(*header), names)
        self.assert_every_row_is_filled(*header, but_for=("OK", "UNAUTHENTICATED"))

    def test_reasons_why_a_version_is_not_available(self):
        reasons = re.findall(r'return "(\w+)";', function(OPTIONS.reasons, "ReasonName"))
        self.assertGreater(len(reasons), 4)
        self.assertCountEqual(self.first_column("`reason`", "means", "what to do"), reasons)
        self.assert_every_row_is_filled("`reason`", "means", "what to do")

    def test_what_becomes_of_sources(self):
        body = function(OPTIONS.code_words, "SourceFailureName")
        words = [word for word in re.findall(r'return "([^"]+)";', body) if word != "failed"]
        self.assertGreater(len(words), 4)
        self.assertCountEqual(self.first_column("words", "means", "what to do if it comes again"), words)

    def test_exit_statuses(self):
        for path, name, header in ((OPTIONS.exit_status, "ExitStatus", "`th`, `tensorhub_worker`"),
                                   (OPTIONS.server_exit, "ServerExit", "`tensorhub_server`")):
            values = enumerators(path, name).values()
            self.assertGreater(len(values), 3)
            self.assertEqual(self.first_column(header, "means"), [str(value) for value in values])

    def test_events(self):
        words = set(re.findall(r'return "([^"]+)";', function(OPTIONS.events, "EventKindName")))
        self.assertGreater(len(words), 15)
        named = [word for rows in tables.with_header(self.page, ("event", "means", "what to do"))
                 for row in rows for word in re.findall("`([^`]+)`", row[0])]
        self.assertCountEqual(named, words)

    def test_the_state_of_the_buffer_is_told_in_these_words(self):
        composed = text(OPTIONS.states)
        for words in self.first_column("the text says", "means"):
            for part in words.split(" step-56")[0].split(", still"):
                self.assertIn(part, composed)


if __name__ == "__main__":
    unittest.main(argv=["errors_test"], verbosity=2)
