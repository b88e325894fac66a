"""Processes of a run: started, bounded in time, and none of them left behind.

A peer's processes may start others, and these may leave their session. This process therefore becomes the parent of
whatever is orphaned below it (adopt_orphans), and end_descendants ends exactly what descends from it.
"""
import ctypes
import json
import os
import signal
import subprocess
import tempfile

PR_SET_CHILD_SUBREAPER = 36
# How much of what a process said is kept for an error's text.
ERROR_CHARACTERS = 300


class ProcessError(Exception):
    """The process did not do what it should; the text says what, and the last that it wrote."""


def adopt_orphans():
    """From here on the orphans among this process's descendants become its children, until it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents(stats):
    """{pid: pid of its parent}, of the texts of /proc/<pid>/stat."""
    found = {}
    for text in stats:
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        if head and len(fields) > 1:
            found[int(head.split(" ", 1)[0])] = int(fields[1])
    return found


def descendants_among(parent_of, ancestor):
    """The pids below `ancestor`, nearest first."""
    children = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [ancestor]
    while waiting:
        for pid in sorted(children.get(waiting.pop(0), [])):
            found.append(pid)
            waiting.append(pid)
    return found


def read_stats():
    texts = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
            except OSError:  # it has ended
                pass
    return texts


def descendants(ancestor=None):
    return descendants_among(parents(read_stats()), ancestor or os.getpid())


def end_descendants():
    """Ends all processes below this one, those that they start meanwhile too, and takes their exit statuses."""
    while True:
        pids = descendants()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def cpu_seconds_in(stat, ticks_per_second):
    """Processor time of all threads of a process, of the text of its /proc/<pid>/stat."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks_per_second


def cpu_seconds(pids):
    """Processor time that these processes have used, to a hundredth of a second each; those that have ended count 0."""
    total = 0.0
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
                total += cpu_seconds_in(file.read(), os.sysconf("SC_CLK_TCK"))
        except OSError:
            pass
    return total


def available_memory_in(meminfo):
    """Bytes, of the text of /proc/meminfo; None when it does not say."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as file:
        return available_memory_in(file.read())


def last_line_of(command, variables, timeout_seconds):
    """Runs `command` and returns the last line of its stdout. ProcessError: it failed, took too long, or wrote nothing.
    When it returns no process is left below this one, so nothing else may run there."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
        # The current folder is in Python's path, and may hold anything.
        process = subprocess.Popen(command, env=variables, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                   start_new_session=True)
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as expired:
            raise ProcessError("it was not done after %d s" % timeout_seconds) from expired
        finally:
            end_descendants()  # also on an interruption
            process.poll()
        out.seek(0)
        errors.seek(0)
        lines, said = out.read().strip().splitlines(), errors.read()
    if status != 0:
        raise ProcessError(error_of(lines, said) or "it ended with status %d" % status)
    if not lines:
        raise ProcessError("it said nothing")
    return lines[-1]


def error_of(lines, errors):
    """What went wrong, of a failed process's output: its own {"error": ...} line, else the last line of stderr."""
    for line in reversed(lines):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and "error" in answer:
            error = answer["error"]
            return str(error.get("message", error) if isinstance(error, dict) else error)[:ERROR_CHARACTERS]
    said = [line for line in errors.strip().splitlines() if line.strip()]
    return said[-1].strip()[:ERROR_CHARACTERS] if said else ""
