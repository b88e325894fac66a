"""Runs the commands of a page as a reader would: word for word, in order, in as many terminals as it takes.

Every fenced block of the language `sh` is run, and there is no way to leave one out. A `text` block that follows is what
the command prints. Comments that only the source of the page shows say what else a reader does:

  <!-- test: server stays until "listening on" -->   the next sh block runs in a terminal of its own, named server; the
                                                     reader goes on once it has printed that
  <!-- test: server says -->                         the next text block is what is printed in that terminal next
  <!-- test: Enter for trainer -->                   the reader presses Enter in that terminal
  <!-- test: Ctrl-C for follower, server -->         the reader presses Ctrl-C there, in this order; they end with status 0
  <!-- test: rollout ends -->                        the command there ends by itself, with status 0
  <!-- test: rollout ends with 1 -->                 likewise, with this status
  <!-- test: status 0 or 1 -->                       of the next sh block, where it may be another than 0

In text blocks "..." stands for anything, and a number with a point or with three digits or more for any number: it is a
size, a time or an id, and so is a pair such as 28449363-2. Lines that a page leaves out may come between those that it
shows.
"""
import collections
import os
import re
import signal
import subprocess
import threading
import time

TIMEOUT_S = 120

Step = collections.namedtuple("Step", "line kind terminal text statuses", defaults=(None, "", (0,)))

DIRECTIVES = [
    ("stays", re.compile(r'(?P<terminal>\w+) stays until "(?P<text>[^"]+)"')),
    ("says", re.compile(r"(?P<terminal>\w+) says")),
    ("enter", re.compile(r"Enter for (?P<terminal>\w+)")),
    ("stop", re.compile(r"Ctrl-C for (?P<terminal>\w+(?:, \w+)*)")),
    ("ends", re.compile(r"(?P<terminal>\w+) ends(?: with (?P<text>\d+))?")),
    ("status", re.compile(r"status (?P<text>\d+(?: or \d+)*)")),
]
OF_THE_NEXT_BLOCK = {"stays": "sh", "status": "sh", "says": "text"}


class PageError(Exception):
    """The page cannot be run, or what it says does not happen. The message names the line."""


def read_directive(text, line):
    for kind, pattern in DIRECTIVES:
        found = pattern.fullmatch(text)
        if found:
            return kind, found.groupdict()
    raise PageError("line %d: nobody understands 'test: %s'" % (line, text))


def blocks(page):
    """(line, language, text) of the fenced blocks; (line, 'directive', text) of the comments for tests; both in order."""
    lines = page.split("\n")
    at = 0
    while at < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[at])
        comment = re.fullmatch(r"<!-- test: (.*) -->", lines[at])
        if comment:
            yield at + 1, "directive", comment.group(1)
        elif "<!-- test" in lines[at]:
            raise PageError("line %d: a comment for the test is a line of its own: <!-- test: ... -->" % (at + 1))
        elif lines[at].startswith("```") and not fence:
            raise PageError("line %d: a fence that is none" % (at + 1))
        elif fence:
            begin = at + 1
            at = next((i for i in range(begin, len(lines)) if lines[i] == "```"), None)
            if at is None:
                raise PageError("line %d: the fence does not end" % begin)
            yield begin, fence.group(1), "\n".join(lines[begin:at])
        at += 1


def steps(page):
    """What a reader does, in order."""
    found = []
    pending = None  # a directive for the next block
    last = None  # the terminal of the last sh block; None: none yet
    for line, language, text in blocks(page):
        if language == "directive":
            kind, fields = read_directive(text, line)
            if pending:
                raise PageError("line %d: no block for the comment before it" % line)
            if kind in OF_THE_NEXT_BLOCK:
                pending = (kind, fields)
            else:
                statuses = (int(fields.get("text") or 0),)
                found += [Step(line, kind, name, statuses=statuses) for name in fields["terminal"].split(", ")]
            continue
        kind, fields = pending or ("", {})
        if pending and language != OF_THE_NEXT_BLOCK[kind]:
            raise PageError("line %d: the comment before it is for a block of %s" % (line, OF_THE_NEXT_BLOCK[kind]))
        pending = None
        if language == "sh" and kind == "stays":
            last = fields["terminal"]
            found += [Step(line, "start", last, text), Step(line, "await", last, fields["text"])]
        elif language == "sh":
            last = ""
            statuses = tuple(int(s) for s in fields.get("text", "0").split(" or "))
            found.append(Step(line, "run", last, text, statuses))
        elif language == "text":
            terminal = fields.get("terminal", last)
            if terminal is None:
                raise PageError("line %d: the output of nothing" % line)
            found.append(Step(line, "output", terminal, text))
    if pending:
        raise PageError("the page ends after a comment for a block")
    return found


def line_pattern(line):
    """What a line of output that a page shows may be in truth."""
    def one(token):
        if token == "...":
            return ".*"
        if token.isspace():
            return r"\s+"
        if re.fullmatch(r"\d{3,}-\d+", token):
            return r"\d+-\d+"
        if re.fullmatch(r"\d{3,}|\d+(\.\d+)+", token):
            return r"\d+(\.\d+)*"
        return re.escape(token)
    tokens = re.findall(r"\.\.\.|\s+|\d{3,}-\d+|\d+(?:\.\d+)*|[^\s\d.]+|\.", line.strip())
    return re.compile(r"\s*" + "".join(one(t) for t in tokens) + r"\s*")


def find_lines(shown, printed):
    """The place behind the last of the shown lines among those printed, or what is missing."""
    at = 0
    for line in shown.split("\n"):
        if line.strip() in ("", "..."):
            continue
        pattern = line_pattern(line)
        place = next((i for i in range(at, len(printed)) if pattern.fullmatch(printed[i])), None)
        if place is None:
            return None, line
        at = place + 1
    return at, None


class Terminal:
    """A command that goes on while the reader does something else."""

    def __init__(self, script, folder, environment):
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            # As in a terminal: Ctrl-C reaches all that the command has started, and nobody ignores it.
            preexec_fn=lambda: (os.setsid(), signal.signal(signal.SIGINT, signal.SIG_DFL)))  # pylint: disable=W1509
        self._printed = []
        self._read = 0  # lines that text blocks have shown already
        self._ended = False
        self._changed = threading.Condition()
        self._collecting = threading.Thread(target=self._collect, daemon=True)
        self._collecting.start()

    def _collect(self):
        with self._process.stdout as output:
            for line in output:
                with self._changed:
                    self._printed.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _await(self, done):
        """True once `done()` is; False when nothing more comes, or not in time."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._changed:
            while not done():
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def await_text(self, text):
        return self._await(lambda: any(text in line for line in self._printed))

    def await_lines(self, shown):
        """None, or the line that does not come."""
        missing = []

        def found():
            at, line = find_lines(shown, self._printed[self._read:])
            missing[:] = [line]
            if at is not None:
                self._read += at
            return at is not None
        return None if self._await(found) else missing[0]

    def press_enter(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def press_ctrl_c(self):
        os.killpg(self._process.pid, signal.SIGINT)

    def await_end(self):
        """The exit status; None: it does not end."""
        try:
            status = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        return status

    def kill(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def _close(self):
        self._process.stdin.close()
        self._collecting.join(TIMEOUT_S)

    def printed(self):
        with self._changed:
            return list(self._printed)


class Reader:
    """Does what a page says. `adapt(script)` gives the script as it runs here, with this machine's ports and addresses."""

    def __init__(self, folder, environment, adapt=lambda script: script):
        self._folder, self._environment, self._adapt = folder, environment, adapt
        self._terminals = {}
        self._printed = []  # by the last command that ran to its end

    def follow(self, page):
        try:
            for step in steps(page):
                getattr(self, "_" + step.kind)(step)
            if self._terminals:
                raise PageError("at the end of the page there still run: %s" % ", ".join(self._terminals))
        finally:
            for terminal in self._terminals.values():
                terminal.kill()

    def _fail(self, step, what, printed):
        raise PageError("line %d: %s; it printed:\n%s" % (step.line, what, "\n".join(printed)))

    def _terminal(self, step):
        if step.terminal not in self._terminals:
            raise PageError("line %d: nothing runs in terminal %s" % (step.line, step.terminal))
        return self._terminals[step.terminal]

    def _run(self, step):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", self._adapt(step.text)], cwd=self._folder,
                              env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
        self._printed = done.stdout.split("\n")
        if done.returncode not in step.statuses:
            self._fail(step, "exit status %d" % done.returncode, self._printed)

    def _start(self, step):
        if step.terminal in self._terminals:
            raise PageError("line %d: terminal %s is in use" % (step.line, step.terminal))
        self._terminals[step.terminal] = Terminal(self._adapt(step.text), self._folder, self._environment)

    def _await(self, step):
        terminal = self._terminal(step)
        if not terminal.await_text(step.text):
            self._fail(step, "it does not say '%s'" % step.text, terminal.printed())

    def _output(self, step):
        if step.terminal:
            terminal = self._terminal(step)
            missing, printed = terminal.await_lines(step.text), terminal.printed()
        else:
            missing, printed = find_lines(step.text, self._printed)[1], self._printed
        if missing is not None:
            self._fail(step, "it does not print '%s'" % missing, printed)

    def _enter(self, step):
        self._terminal(step).press_enter()

    def _stop(self, step):
        self._terminal(step).press_ctrl_c()
        self._ends(step)

    def _ends(self, step):
        terminal = self._terminal(step)
        status = terminal.await_end()
        if status not in step.statuses:
            self._fail(step, "it does not end" if status is None else "exit status %d" % status, terminal.printed())
        del self._terminals[step.terminal]
