"""What is made of the answer to --help has every command and flag of it."""
import pathlib
import stat
import subprocess
import tempfile
import unittest

from tools.packages import command_help

# A program whose help is laid out as CLI11 does it.
PROGRAM = """#!/bin/sh
case "$*" in
  "copy --help") cat <<'END'
copies what it's given; -x is no flag
Usage: tool copy [OPTIONS] from to

Positionals:
  from TEXT REQUIRED          where from

Options:
  -h,--help                   Print this help message and exit
  --a-flag-with-a-long-name TEXT:FILE=none
                              what stands on a line of its own
                              and goes on

tool COMMAND --help says more.
END
  ;;
  "--help") cat <<'END'
a tool
Usage: tool [OPTIONS] SUBCOMMAND

Options:
  --version                   Display program version information and exit

Subcommands:
  copy                        copies

Exit status: 0 done.
END
  ;;
esac
"""


class CommandHelpTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name, "tool")
        file.write_text(PROGRAM)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        self.tool = command_help.ask(file)

    def test_commands_are_a_tree(self):
        self.assertEqual([command.path for command in self.tool.all()], [["tool"], ["tool", "copy"]])
        self.assertEqual(self.tool.commands[0].usage, "tool copy [OPTIONS] from to")
        self.assertEqual(self.tool.footer, ["Exit status: 0 done."])

    def test_an_option_has_names_value_and_all_of_its_text(self):
        self.assertEqual(self.tool.commands[0].options()[1], command_help.Entry(
            ["--a-flag-with-a-long-name"], "TEXT:FILE=none", "what stands on a line of its own and goes on"))
        self.assertEqual(self.tool.commands[0].options()[0].names, ["-h", "--help"])

    def test_the_page_has_every_command_and_flag(self):
        page = command_help.manual_page(self.tool, "1.2")
        for line in (".TH TOOL 1 \"\" \"TensorHub 1.2\"", ".SH TOOL COPY", "copies what it's given; \\-x is no flag",
                     ".B \\-\\-a\\-flag\\-with\\-a\\-long\\-name TEXT:FILE=none", ".B from TEXT REQUIRED"):
            self.assertIn(line, page.split("\n"))

    def completions(self, *words):
        script = command_help.bash_completion(self.tool) + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tool; echo "${COMPREPLY[@]}"'
        return subprocess.run(["bash", "-euc", script, "bash", *words], capture_output=True, text=True, check=True).stdout.split()

    def test_bash_completes_by_the_command_before(self):
        self.assertEqual(self.completions("tool", ""), ["copy", "--version"])
        self.assertEqual(self.completions("tool", "copy", "--"), ["--help", "--a-flag-with-a-long-name"])
        self.assertEqual(self.completions("tool", "copy", "file", "--a"), ["--a-flag-with-a-long-name"])

    def test_fish_quotes_what_it_shows(self):
        lines = command_help.fish_completion(self.tool).split("\n")
        self.assertIn("complete -c tool -n '__fish_use_subcommand' -a 'copy' -d 'copies'", lines)
        self.assertIn("complete -c tool -n '__fish_seen_subcommand_from copy' -l a-flag-with-a-long-name -r -d "
                      "'what stands on a line of its own and goes on'", lines)


if __name__ == "__main__":
    unittest.main(verbosity=2)
