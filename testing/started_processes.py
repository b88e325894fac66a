"""Programs that run as long as a test needs them; for scripts that test outside of Bazel."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from testing.waiting import PATIENCE_S, until

MOST_SHOWN = 3000  # characters of each log, when a test fails


class Processes:
    """A folder, and processes that work in it. All of them, and the folder, go at the end of the test."""

    def __init__(self, test: unittest.TestCase, prefix: str) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
        test.addCleanup(shutil.rmtree, self.folder)
        self._test = test

    def start(self, name: str, *command: str, stdin=subprocess.DEVNULL, **environment: str) -> subprocess.Popen:
        """All that it prints goes to NAME.log; a name is of one process. `stdin` as Popen takes it."""
        with open(self._log(name), "x") as log:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=dict(os.environ, **environment),
            )
        process.name = name
        self._test.addCleanup(process.wait)
        self._test.addCleanup(process.kill)
        return process

    def await_text(self, process: subprocess.Popen, pattern: str) -> re.Match:
        """The first place where the pattern matches what the process has printed."""

        def found():
            has_ended = process.poll() is not None  # asked first: what is read after it is all that there will be
            match = re.search(pattern, self._log(process.name).read_text(errors="replace"))
            if match is None and has_ended:
                raise AssertionError("%s ended with status %d\n%s" % (process.name, process.returncode, self.logs()))
            return match

        return until(found, "%s says '%s'" % (process.name, pattern), self.logs)

    def end_at_cleanup(self, process: subprocess.Popen) -> None:
        """SIGTERM at the end of the test, before the SIGKILL that all get."""
        self._test.addCleanup(process.wait, timeout=PATIENCE_S)
        self._test.addCleanup(process.terminate)

    def end(self, process: subprocess.Popen) -> None:
        """SIGTERM, after which it ends with status 0."""
        process.send_signal(signal.SIGTERM)
        self._test.assertEqual(process.wait(timeout=PATIENCE_S), 0, self.logs())

    def logs(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "".join("==== %s\n%s" % (file.name, file.read_text(errors="replace")[-MOST_SHOWN:]) for file in files)

    def _log(self, name: str) -> pathlib.Path:
        return self.folder / (name + ".log")
