"""Tests results.py on folders as the guest leaves them."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

from testing.rxe_machine import results

GOOGLE_TEST_XML = """<testsuites><testsuite name="S">
<testcase name="Good" status="run" classname="S"/>
<testcase name="NoGpu" status="run" classname="S"><skipped message="no GPU here"/></testcase>
</testsuite></testsuites>"""


class ResultsTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "results").mkdir()
        self.write("kernel_log", "[1.0] all is well\n")
        self.write("console", "")

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def judge(self, *tests):
        """(exit status, printed text, {"class.name": failure's message or None}) of results.py."""
        printed = io.StringIO()
        sys.argv = ["results.py", "--folder", str(self.folder), "--console", str(self.folder / "console"),
                    "--limit-seconds", "60", "--xml", str(self.folder / "out.xml"), *tests]
        with contextlib.redirect_stdout(printed):
            status = results.main()
        cases = {}
        for case in ET.parse(self.folder / "out.xml").getroot().iter("testcase"):
            failure = case.find("failure")
            cases["%s.%s" % (case.get("classname"), case.get("name"))] = None if failure is None else failure.get("message")
        return status, printed.getvalue(), cases

    def test_a_test_without_xml_is_one_case(self):
        self.write("results/0.result", "0 1.5\n")
        status, printed, cases = self.judge("some/where/plain")
        self.assertEqual(status, 0)
        self.assertIn("PASSED plain (1.5 s)", printed)
        self.assertEqual(cases, {"rxe_machine.plain": None})

    def test_a_google_test_counts_by_its_cases(self):
        self.write("results/0.result", "0 1.5\n")
        self.write("results/0.xml", GOOGLE_TEST_XML)
        status, _, cases = self.judge("google_test")
        self.assertEqual(status, 0)
        self.assertEqual(cases, {"S.Good": None, "S.NoGpu": None})

    def test_a_status_that_no_case_shows_is_a_case(self):
        self.write("results/0.result", "1 1.5\n")
        self.write("results/0.xml", GOOGLE_TEST_XML)
        status, printed, cases = self.judge("google_test")
        self.assertEqual(status, 1)
        self.assertIn("FAILED google_test: exit status 1", printed)
        self.assertEqual(cases["rxe_machine.google_test"], "exit status 1")

    def test_a_crash_is_named_by_its_signal(self):
        self.write("results/0.result", "139 0.1\n")
        self.write("results/0.xml", GOOGLE_TEST_XML[:40])
        status, _, cases = self.judge("crashes")
        self.assertEqual(status, 1)
        self.assertEqual(cases, {"rxe_machine.crashes": "ended by signal 11"})

    def test_a_limit_is_named(self):
        self.write("results/0.result", "limit 60.2\n")
        status, _, cases = self.judge("hangs")
        self.assertEqual(status, 1)
        self.assertEqual(cases, {"rxe_machine.hangs": "ended after its limit of 60 s"})

    def test_a_test_that_was_not_reached_has_failed(self):
        self.write("results/0.result", "0 1.0\n")
        status, _, cases = self.judge("first", "second")
        self.assertEqual(status, 1)
        self.assertEqual(cases, {"rxe_machine.first": None, "rxe_machine.second": "the machine ended before this test had"})

    def test_a_fault_of_the_kernel_fails_what_passed(self):
        self.write("results/0.result", "0 1.0\n")
        self.write("kernel_log", "[1.0] fine\n[2.0] BUG: kernel NULL pointer dereference\n[2.1] Call Trace:\n")
        status, printed, cases = self.judge("passes")
        self.assertEqual(status, 1)
        self.assertIn("Call Trace", printed)
        self.assertIn("NULL pointer", cases["rxe_machine.kernel"])

    def test_tests_of_one_name_are_told_apart(self):
        self.write("results/0.result", "0 1.0\n")
        self.write("results/1.result", "0 1.0\n")
        _, _, cases = self.judge("a/same", "b/same")
        self.assertEqual(set(cases), {"rxe_machine.a/same", "rxe_machine.b/same"})


if __name__ == "__main__":
    unittest.main()
