"""Getting started, as a new user does it: the commands are run, the programs are the ones that are compiled.

The folder that the commands run in looks like a checkout after its builds: `bazel-bin`, `tools/th` and the sources that
the page names. `tools/setup` does nothing there, `bazel` checks that what it is asked to build is what this test was
given, `cc` is the build's own compiler, and `python3 -m venv` and its `pip` unpack the wheel. Ports are the system's choice, and the first machine is this one.
"""
import argparse
import os
import pathlib
import re
import stat
import sys
import tempfile
import unittest

from docs import commands

ADDRESS_OF_THE_FIRST_MACHINE = "10.0.0.1"
PORT = "7077"


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True)
    parser.add_argument("--target", nargs=2, action="append", metavar=("LABEL", "FILE"), required=True)
    parser.add_argument("--source", action="append", required=True, help="shown by the page, or needed by its commands")
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--model-file", action="append", required=True)
    return parser.parse_args()


OPTIONS = parse_arguments()


def page():
    return pathlib.Path(OPTIONS.page).read_text(encoding="utf-8")


def place_of(label):
    """Where Bazel puts what it builds: '//th/cli:th' -> 'bazel-bin/th/cli/th'."""
    return "bazel-bin/" + label.removeprefix("//").replace(":", "/")


def link(folder, at, file):
    path = folder / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(pathlib.Path(file).resolve())


def script(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/bash", "set -euo pipefail", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def make_checkout(folder):
    for label, file in OPTIONS.target:
        link(folder, place_of(label), file)
    for source in OPTIONS.source:
        link(folder, source, source)
    script(folder / "tools/setup")
    script(folder / "tools/th", 'exec "$(dirname "$0")/../bazel-bin/th/cli/th" "$@"')
    script(folder / "tools/package", 'mkdir -p "$1"', 'cp %s "$1"' % pathlib.Path(OPTIONS.wheel).resolve())


def make_programs(folder, output_base):
    """`bazel` and `cc`, as far as the page uses them."""
    labels = [label for label, _ in OPTIONS.target] + ["@all_minilm_l6_v2//:model_files"]
    script(folder / "bazel", "case $1 in",
           "  info) [[ $2 == output_base ]]; echo %s ;;" % output_base,
           '  build) shift; for label; do case $label in %s) ;; *) echo "what is $label?"; exit 1 ;; esac; done ;;'
           % "|".join(re.escape(label) for label in labels),
           '  *) echo "bazel $*: not known to this test"; exit 1 ;;', "esac")
    venv = folder / "venv"  # what `python3 -m venv` copies: its programs find the wheel beside themselves
    here = '$(cd "$(dirname "$0")/.." && pwd)/site'
    script(venv / "bin/python", 'PYTHONPATH=%s exec %s "$@"' % (here, sys.executable))
    script(venv / "bin/pip", 'site=' + here, '%s -m zipfile -e "$2" "$site"' % sys.executable, 'chmod +x "$site"/tensorhub/bin/*')
    for program in ("th", "tensorhub_server", "tensorhub_worker"):
        script(venv / "bin" / program, 'exec "%s/tensorhub/bin/%s" "$@"' % (here, program))
    script(folder / "python3", '[[ $1 == -m && $2 == venv ]] || exec %s "$@"' % sys.executable, 'cp -r %s "$3"' % venv)
    gcc = pathlib.Path("external/gcc12").absolute()
    headers = ["usr/lib/gcc/x86_64-linux-gnu/12/include", "usr/include/x86_64-linux-gnu", "usr/include"]
    script(folder / "cc", "exec %s/bin/gcc -nostdinc %s -fuse-ld=gold \"$@\""
           % (gcc, " ".join("-idirafter %s/%s" % (gcc, header) for header in headers)))


class Adaptation:
    """Gives every server a port of the system's choice, and names it in what follows."""

    def __init__(self, folder):
        self._port_file = folder / "port"

    def __call__(self, text):
        text = text.replace(ADDRESS_OF_THE_FIRST_MACHINE, "127.0.0.1")
        if "--listen=" in text:
            self._port_file.unlink(missing_ok=True)
            return re.sub(r"(--listen=\S+):%s\b" % PORT, r"\1:0 --port-file=%s" % self._port_file, text)
        if not self._port_file.exists():
            return text
        return text.replace(PORT, self._port_file.read_text().strip())


class GettingStartedTest(unittest.TestCase):

    def test_its_commands_do_what_it_says(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as name:
            root = pathlib.Path(name)
            checkout, programs, output_base = root / "checkout", root / "programs", root / "output_base"
            make_checkout(checkout)
            make_programs(programs, output_base)
            for file in OPTIONS.model_file:
                link(output_base, "external/all_minilm_l6_v2/model/" + file.split("/model/", 1)[1], file)
            environment = {"PATH": "%s:/usr/bin:/bin" % programs, "HOME": str(root)}
            commands.Reader(checkout, environment, Adaptation(root)).follow(page())

    def test_its_programs_are_those_that_are_compiled(self):
        shown = re.findall(r"^```(?:c|cpp|python)\n(.*?)^```$", page(), re.DOTALL | re.MULTILINE)
        compiled = [pathlib.Path(source).read_text(encoding="utf-8")
                    for source in OPTIONS.source if source.endswith((".c", ".cc", ".py"))]
        self.assertEqual(len(shown), 6)
        self.assertCountEqual(shown, compiled)

    def test_no_command_hides_in_a_block_of_another_language(self):
        languages = {language for _, language, _ in commands.blocks(page())}
        self.assertLessEqual(languages, {"sh", "text", "c", "cpp", "python", "directive"})


if __name__ == "__main__":
    unittest.main(argv=["getting_started_test"], verbosity=2)
