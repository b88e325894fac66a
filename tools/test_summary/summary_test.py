"""Tests summary.py on events as Bazel writes them."""
import json
import os
import tempfile
import unittest

from tools.test_summary import summary

GTEST_XML = """<testsuites><testsuite name="S">
<testcase name="Good" status="run" result="completed" classname="S"/>
<testcase name="Bad" status="run" result="completed" classname="S"><failure message="no"/></testcase>
<testcase name="NoGpu" status="run" result="skipped" classname="S"><skipped message="x.cc:3&#x0A;no GPU here"/></testcase>
<testcase name="DISABLED_Old" status="notrun" result="suppressed" classname="S"/>
</testsuite></testsuites>"""


def configured(label):
    return {"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": "SMALL"}}


def completed(label, success):
    return {"id": {"targetCompleted": {"label": label}}, "completed": {"success": True} if success else {}}


def summarized(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


def result(label, xml):
    outputs = [{"name": "test.xml", "uri": "file://" + xml}, {"name": "test.log", "uri": "file:///logs/a%20b.log"}]
    return {"id": {"testResult": {"label": label}}, "testResult": {"testActionOutput": outputs}}


class SummaryTest(unittest.TestCase):

    def setUp(self):
        handle, self.xml = tempfile.mkstemp(dir=os.environ.get("TEST_TMPDIR"))
        os.write(handle, GTEST_XML.encode())
        os.close(handle)

    def counts(self, events, bazel_status=0):
        return summary.summarize(summary.read_events(json.dumps(e) for e in events), bazel_status)

    def test_counts_cases_and_names_skipped_and_failed_ones(self):
        counts = self.counts([configured("//a:t"), result("//a:t", self.xml), summarized("//a:t", "FAILED")], 3)
        self.assertEqual(counts.line(), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(counts.failed, [("//a:t S.Bad", "failed: /logs/a b.log")])
        self.assertEqual(counts.skipped, [("//a:t S.NoGpu", "no GPU here"),
                                          ("//a:t S.DISABLED_Old", "disabled in the source")])

    def test_target_that_does_not_build_is_a_failed_case(self):
        for events in [configured("//a:t")], [configured("//a:t"), completed("//a:t", False)]:
            counts = self.counts(events, 1)
            self.assertEqual(counts.failed, [("//a:t", "did not build")])

    def test_target_that_an_interrupt_ended_is_a_failed_case(self):
        aborted = {"id": {"testSummary": {"label": "//a:t"}}, "aborted": {"reason": "USER_INTERRUPTED"}}
        counts = self.counts([configured("//a:t"), completed("//a:t", True), aborted], 8)
        self.assertEqual(counts.failed, [("//a:t", "interrupted")])

    def test_target_that_a_filter_left_out_is_no_case(self):
        counts = self.counts([configured("//a:left_out"), configured("//a:t"), completed("//a:left_out", True),
                              completed("//a:t", True), summarized("//a:t", "PASSED")])
        self.assertEqual(counts.line(), "1 passed, 0 failed, 0 skipped")

    def test_crash_after_good_cases_is_a_failed_case(self):
        open(self.xml, "w").close()
        counts = self.counts([configured("//a:t"), result("//a:t", self.xml), summarized("//a:t", "TIMEOUT")], 3)
        self.assertEqual(counts.line(), "0 passed, 1 failed, 0 skipped")
        self.assertIn("timeout", counts.failed[0][1])

    def test_passed_target_without_cases_is_one_case(self):
        counts = self.counts([configured("//a:t"), summarized("//a:t", "PASSED")])
        self.assertEqual(counts.line(), "1 passed, 0 failed, 0 skipped")

    def test_broken_build_file_is_a_failure_even_if_all_tests_pass(self):
        counts = self.counts([configured("//a:t"), summarized("//a:t", "PASSED")], 1)
        self.assertEqual(counts.line(), "1 passed, 1 failed, 0 skipped")

    def test_no_test_at_all_is_a_failure(self):
        self.assertEqual(self.counts([]).line(), "0 passed, 1 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
