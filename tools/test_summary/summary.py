#!/usr/bin/env python3
"""Says what a `bazel test` did, from its build events: failed and skipped cases by name, then one line of counts.

Counts test cases, not targets: from the XML that GoogleTest writes; a test that writes none counts as one case. The
closing line of Bazel itself cannot be used, since it does not count cached tests as run.
"""
import argparse
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ET

BAZEL_TESTS_FAILED = 3


class Target:
    """What the events say of one test target."""

    def __init__(self):
        self.status = "did not build"
        self.built = False
        self.xml_files = []
        self.log = None

    def was_left_out(self):
        """It was built beside the tests, but a filter on tags kept it from being run: Bazel announces no summary."""
        return self.built and self.status == "did not build"


def read_events(lines):
    """{label: Target} of all tests that were to be run."""
    targets = {}
    for line in lines:
        event = json.loads(line)
        key = event["id"]
        if "targetConfigured" in key and event.get("configured", {}).get("testSize"):
            targets.setdefault(key["targetConfigured"]["label"], Target())
        if "targetCompleted" in key and key["targetCompleted"]["label"] in targets:
            targets[key["targetCompleted"]["label"]].built = event.get("completed", {}).get("success", False)
        if "testSummary" in key:
            summary = event.get("testSummary", {"overallStatus": "INTERRUPTED"})
            targets.setdefault(key["testSummary"]["label"], Target()).status = summary["overallStatus"]
        if "testResult" in key and "testResult" in event:
            target = targets.setdefault(key["testResult"]["label"], Target())
            for output in event["testResult"].get("testActionOutput", []):
                path = urllib.parse.unquote(output.get("uri", "")[len("file://"):])
                if output["name"] == "test.xml":
                    target.xml_files.append(path)
                if output["name"] == "test.log":
                    target.log = path
    return {label: target for label, target in targets.items() if not target.was_left_out()}


class Counts:

    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []

    def line(self):
        return "%d passed, %d failed, %d skipped" % (len(self.passed), len(self.failed), len(self.skipped))


def reason_of(case):
    """Why GoogleTest skipped a case: what the test gave to GTEST_SKIP, without the place in the source."""
    skipped = case.find("skipped")
    if skipped is None:
        return "disabled in the source"
    text = (skipped.get("message") or skipped.text or "").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def count_cases(label, paths, counts):
    """Sorts the cases of one target's XML files."""
    for path in paths:
        try:
            root = ET.parse(path).getroot()
        except (ET.ParseError, OSError):
            continue  # cut short by a crash: the target's own status tells
        for case in root.iter("testcase"):
            # Bazel's own stand-in for a test that writes no XML has one case without a class.
            name = "%s %s.%s" % (label, case.get("classname"), case.get("name")) if case.get("classname") else label
            if case.find("failure") is not None or case.find("error") is not None:
                counts.failed.append((name, "failed"))
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                counts.skipped.append((name, reason_of(case)))
            else:
                counts.passed.append((name, ""))


def summarize(targets, bazel_status):
    counts = Counts()
    for label, target in sorted(targets.items()):
        own = Counts()
        count_cases(label, target.xml_files, own)
        if target.status in ("PASSED", "FLAKY"):
            if not own.passed and not own.skipped:
                own.passed.append((label, ""))
        elif not own.failed:
            own.failed.append((label, target.status.lower().replace("_", " ")))
        counts.passed += own.passed
        counts.failed += [(name, why + (": " + target.log if target.log else "")) for name, why in own.failed]
        counts.skipped += own.skipped
    if bazel_status not in (0, BAZEL_TESTS_FAILED) and not counts.failed:
        counts.failed.append(("the build", "bazel ended with exit status %d" % bazel_status))
    if bazel_status == BAZEL_TESTS_FAILED and not counts.failed:
        counts.failed.append(("the tests", "bazel reports a failure that no target's results show"))
    if not targets and not counts.failed:
        counts.failed.append(("the tests", "no test was found"))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bazel-status", type=int, default=0, help="exit status of bazel")
    parser.add_argument("events", help="file written by --build_event_json_file")
    arguments = parser.parse_args()
    with open(arguments.events) as f:
        counts = summarize(read_events(f), arguments.bazel_status)
    for name, reason in counts.skipped:
        print("SKIPPED %s: %s" % (name, reason))
    for name, why in counts.failed:
        print("FAILED %s: %s" % (name, why))
    print(counts.line())
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
