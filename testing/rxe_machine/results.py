#!/usr/bin/python3
"""Says what each test came to that ran in the machine, by name, and writes all their cases into one XML file.

usage: results.py --folder SHARED --console FILE --limit-seconds N [--xml OUT] TEST...

SHARED is the folder that the guest wrote (see guest/init). A test that writes GoogleTest's XML counts by its cases, any other
as one case. Exit status 0 only if all have passed and the guest's kernel is well.
"""
import argparse
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

KERNEL_FAULT = re.compile(r"BUG:|Oops:|general protection fault|Kernel panic|KASAN|refcount_t:")
LINES_OF_FAULT = 25


class Result:
    """What one test came to: `suites` are the elements of its XML, `failure` is None if it passed."""

    def __init__(self, name, seconds, suites, failure):
        self.name, self.seconds, self.suites, self.failure = name, seconds, suites, failure

    def line(self):
        if self.failure:
            return "rxe_machine: FAILED %s: %s" % (self.name, self.failure)
        return "rxe_machine: PASSED %s (%s s)" % (self.name, self.seconds)


def one_case(name, failure):
    """A suite of one case, for what has no XML of its own."""
    suite = ET.Element("testsuite", name="rxe_machine", tests="1", failures="1" if failure else "0")
    case = ET.SubElement(suite, "testcase", classname="rxe_machine", name=name, status="run")
    if failure:
        ET.SubElement(case, "failure", message=failure)
    return suite


def suites_of(path):
    """The suites in GoogleTest's XML file; [] if there is none, or half a one."""
    try:
        root = ET.parse(path).getroot()
    except (ET.ParseError, OSError):
        return []
    return list(root.iter("testsuite"))


def failure_of(status, limit_seconds):
    """None for the exit status of a test that passed."""
    if status == "0":
        return None
    if status == "limit":
        return "ended after its limit of %d s" % limit_seconds
    if int(status) > 128:
        return "ended by signal %d" % (int(status) - 128)
    return "exit status %s" % status


def read_result(folder, number, name, limit_seconds):
    try:
        status, seconds = (folder / ("%d.result" % number)).read_text().split()
    except (OSError, ValueError):
        failure = "the machine ended before this test had"
        return Result(name, "", [one_case(name, failure)], failure)
    failure = failure_of(status, limit_seconds)
    suites = suites_of(folder / ("%d.xml" % number))
    shown = any(case.find("failure") is not None for suite in suites for case in suite.iter("testcase"))
    if not suites or (failure and not shown):
        suites.append(one_case(name, failure))
    return Result(name, seconds, suites, failure)


def kernel_fault(paths):
    """The lines of the first fault that the guest's kernel reported, or ''."""
    for path in paths:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines):
            if KERNEL_FAULT.search(line):
                return "\n".join(lines[number:number + LINES_OF_FAULT])
    return ""


def names_of(paths):
    """The tests' file names; with their folders where two have the same."""
    names = [os.path.basename(p) for p in paths]
    return [n if names.count(n) == 1 else p for n, p in zip(names, paths)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--console", type=pathlib.Path, required=True)
    parser.add_argument("--limit-seconds", type=int, required=True)
    parser.add_argument("--xml", help="none is written if this is empty")
    parser.add_argument("test", nargs="+")
    arguments = parser.parse_args()
    results = [read_result(arguments.folder / "results", number, name, arguments.limit_seconds)
               for number, name in enumerate(names_of(arguments.test))]
    fault = kernel_fault([arguments.folder / "kernel_log", arguments.console])
    if fault:
        failure = "the guest's kernel reported a fault:\n" + fault
        results.append(Result("kernel", "", [one_case("kernel", failure)], failure))
    for result in results:
        print(result.line())
    errors = arguments.folder / "rdma_errors"
    if any(r.failure for r in results) and errors.exists():
        print("rxe_machine: the devices' counters of errors:\n%s" % (errors.read_text() or "none is above 0"))
    if arguments.xml:
        root = ET.Element("testsuites", name="rxe_machine")
        root.extend(suite for result in results for suite in result.suites)
        ET.ElementTree(root).write(arguments.xml, encoding="UTF-8", xml_declaration=True)
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
