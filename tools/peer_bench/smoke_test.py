"""tools/bench as it is run, tiny, with the peers that need no installation."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / os.environ["TEST_WORKSPACE"]


class SmokeTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def bench(self, *flags):
        command = [sys.executable, str(ROOT / "tools/bench"), "--th", str(ROOT / "th/cli/th"), "--out", self.folder.name,
                   "--cache", self.folder.name + "/cache", *flags]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def measured(self, *flags):
        ran = self.bench("--bytes", "16MiB", "--rounds", "1", "--json", *flags)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout.splitlines()[-1])

    def check_rows(self, result, transport):
        for row in result["rows"]:
            with self.subTest(row["peer"], congestion=row["congestion"]):
                self.assertEqual(row["failures"], [])
                self.assertEqual(row["rounds"], 1)
                self.assertEqual(row["verified"], row["peer"] != "iperf3")
                self.assertGreater(row["last_reader_seconds"], 0)
                self.assertGreater(row["ratio"], 0)
                if not row["peer"].startswith("plain"):
                    self.assertGreater(row["cpu_seconds_per_gb"], 0)
        page = (pathlib.Path(self.folder.name) / (transport + ".md")).read_text(encoding="utf-8")
        self.assertIn("| **TensorHub** |", page)
        for picture in pathlib.Path(self.folder.name).glob("*.svg"):
            xml.etree.ElementTree.parse(picture)
            self.assertIn(picture.name, page)

    def test_same_host_beside_memory(self):
        result = self.measured("--transport", "same-host", "--readers", "2", "--only", "memcpy,process_vm_readv", "--tensors", "100")
        self.assertEqual([row["peer"] for row in result["rows"]],
                         ["ours", "ours_unchecked", "ours_1_tensors", "ours_100_tensors", "plain", "memcpy", "process_vm_readv"])
        self.check_rows(result, "same_host")

    def test_tcp_beside_iperf3_with_two_congestion_controls(self):
        # reno is part of every kernel; where the bench has no network of its own, it stays with what there is.
        result = self.measured("--readers", "1", "--only", "iperf3", "--congestion", "default,reno")
        missing = [each["peer"] for each in result["missing"]]
        expected = ["ours", "ours_unchecked", "plain"] + (["iperf3"] if not missing else [])
        for congestion in {row["congestion"] for row in result["rows"]}:
            there = [row["peer"] for row in result["rows"] if row["congestion"] == congestion]
            held = ["ours_as_set", "plain_as_set"] if congestion != "cubic" and not result["network"] else []
            self.assertEqual([name for name in there if name not in held], expected)
            self.assertEqual([name for name in there if name in held], held)
        self.assertEqual("iperf3 is not in the table" in (pathlib.Path(self.folder.name) / "tcp.md").read_text(), bool(missing))
        self.check_rows(result, "tcp")

    def test_a_slip_of_the_command_line_is_said(self):
        for flags, said in ((["--only", "nccl"], "there is no peer nccl"), (["--bytes", "1GB"], "no size"),
                            (["--bytes", "1MiB"], "16 MiB"),
                            (["--readers", "0"], "no list of numbers"), (["--th", "/nowhere"], "/nowhere"),
                            (["--congestion", "pigeon"], "pigeon")):
            with self.subTest(flags):
                ran = self.bench(*flags)
                self.assertEqual(ran.returncode, 2, ran.stderr)
                self.assertIn(said, ran.stderr)


if __name__ == "__main__":
    unittest.main()
