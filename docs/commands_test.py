"""Pages whose commands do not do what they say are noticed."""
import os
import tempfile
import unittest

from docs import commands


def sh(*lines):
    return "\n".join(["```sh", *lines, "```", ""])


def shows(*lines):
    return "\n".join(["```text", *lines, "```", ""])


class CommandsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def follow(self, *parts, **options):
        commands.Reader(self.folder.name, {"PATH": "/usr/bin:/bin"}, **options).follow("\n".join(parts))

    def fails(self, pattern, *parts):
        with self.assertRaisesRegex(commands.PageError, pattern):
            self.follow(*parts)

    def test_runs_every_block_in_one_folder(self):
        self.follow("Text.", "", sh("echo one >file", "echo two >>file"), "More.", "", sh("cat file"),
                    shows("one", "two"))

    def test_a_command_that_fails_is_noticed_with_its_line(self):
        self.fails("line 3: exit status 1", "Text.", "", sh("false"))
        self.fails("exit status 1", sh("false", "true"))
        self.follow("<!-- test: status 0 or 1 -->", sh("false"))
        self.fails("exit status 2", "<!-- test: status 0 or 1 -->", sh("exit 2"))

    def test_another_output_is_noticed(self):
        self.fails("does not print 'two'", sh("echo one"), shows("one", "two"))
        self.fails("does not print 'one'", sh("echo two; echo one"), shows("two", "one", "one"))
        self.fails("does not print 'ne'", sh("echo one"), shows("ne"))

    def test_sizes_and_times_may_differ_and_counts_may_not(self):
        self.follow(sh("echo 'version #28.1  of 3 ranks in 0.52 s, 1234 bytes'"),
                    shows("version #31.17 of 3 ranks in 1.5 s, 90868 bytes"))
        self.follow(sh("echo event=77-9"), shows("event=28449363-2"))
        self.fails("does not print", sh("echo of 3 ranks"), shows("of 4 ranks"))
        self.follow(sh("echo over tcp at 10.0.0.1:99"), shows("over ... at ..."))

    def test_terminals_go_on_beside(self):
        self.follow('<!-- test: first stays until "ready" -->',
                    sh("trap 'exit 0' INT; echo ready; read line; echo got it; while true; do sleep 0.1; done"),
                    "<!-- test: Enter for first -->", "<!-- test: first says -->", shows("got it"),
                    '<!-- test: second stays until "here" -->', sh("echo here; read line; echo bye"),
                    "<!-- test: Enter for second -->", "<!-- test: second ends -->", "<!-- test: Ctrl-C for first -->")

    def test_a_terminal_that_ends_early_or_badly_is_noticed(self):
        self.fails("does not say 'ready'", '<!-- test: first stays until "ready" -->', sh("echo no"))
        self.fails("exit status 3", '<!-- test: first stays until "a" -->', sh("echo a; exit 3"),
                   "<!-- test: first ends -->")
        self.fails("exit status 3", '<!-- test: first stays until "a" -->', sh("echo a; exit 3"),
                   "<!-- test: first ends with 1 -->")
        self.follow('<!-- test: first stays until "a" -->', sh("echo a; exit 1"), "<!-- test: first ends with 1 -->")
        self.fails("still run: first", '<!-- test: first stays until "a" -->', sh("echo a; sleep 1000"))
        self.fails("does not print 'b'", '<!-- test: first stays until "a" -->', sh("echo a"),
                   "<!-- test: first says -->", shows("b"))

    def test_what_is_printed_before_is_not_printed_again(self):
        self.fails("does not print 'a'", '<!-- test: first stays until "a" -->', sh("echo a"), shows("a"),
                   "<!-- test: first says -->", shows("a"))

    def test_scripts_run_as_adapted(self):
        self.follow(sh("echo HERE"), shows("there"), adapt=lambda script: script.replace("HERE", "there"))

    def test_comments_that_mean_nothing_are_refused(self):
        for comment in ("<!-- test: first goes until ready -->", "  <!-- test: first ends -->", "<!-- test first ends -->"):
            self.fails("line 1", comment)
        self.fails("the page ends", "<!-- test: first says -->")
        self.fails("for a block of text", "<!-- test: first says -->", sh("true"))
        self.fails("no block for the comment", "<!-- test: first says -->", "<!-- test: first says -->", shows("a"))
        self.fails("nothing runs in terminal first", "<!-- test: first ends -->")
        self.fails("the output of nothing", shows("a"))
        self.fails("does not end", "```sh", "true")
        self.fails("in use", '<!-- test: a stays until "a" -->', sh("echo a; sleep 9"),
                   '<!-- test: a stays until "a" -->', sh("echo a"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
