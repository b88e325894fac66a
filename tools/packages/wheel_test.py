"""The wheel as pip unpacks it: its files are those that it records, and what it installs runs."""
import base64
import configparser
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

WHEEL = os.path.abspath(sys.argv[1])
MAX_BYTES = 25 << 20


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.site = cls.folder.name
        with zipfile.ZipFile(WHEEL) as wheel:
            for entry in wheel.infolist():
                path = wheel.extract(entry, cls.site)
                os.chmod(path, entry.external_attr >> 16)
        cls.info = next(name for name in os.listdir(cls.site) if name.endswith(".dist-info"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def read(self, *path):
        with open(os.path.join(self.site, *path), "rb") as file:
            return file.read()

    def run_program(self, *command, **options):
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=self.site,
                              env={"PATH": "/usr/bin:/bin", "PYTHONPATH": self.site}, **options)

    def test_it_is_no_larger_than_promised(self):
        self.assertLess(os.path.getsize(WHEEL), MAX_BYTES)
        print("the wheel has %.1f MiB" % (os.path.getsize(WHEEL) / 2**20))

    def test_its_record_names_every_file_with_its_digest(self):
        rows = list(csv.reader(io.StringIO(self.read(self.info, "RECORD").decode())))
        with zipfile.ZipFile(WHEEL) as wheel:
            self.assertEqual(sorted(row[0] for row in rows), sorted(wheel.namelist()))
        for path, digest, size in rows:
            if path == self.info + "/RECORD":
                self.assertEqual((digest, size), ("", ""))
                continue
            data = self.read(path)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, size), ("sha256=" + expected, str(len(data))), path)

    def test_its_readme_has_no_link_into_the_repository(self):
        self.assertNotRegex(self.read(self.info, "METADATA").decode(), r"\]\((?!https?://)")

    def test_its_commands_are_its_programs(self):
        entries = configparser.ConfigParser()
        entries.read_string(self.read(self.info, "entry_points.txt").decode())
        self.assertEqual(len(entries["console_scripts"]), 3)
        for name, place in entries["console_scripts"].items():
            module, function = place.split(":")
            out = self.run_program(sys.executable, "-c", "import %s as m; m.%s()" % (module, function), "--version")
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertRegex(out.stdout, "^%s " % name)
        out = self.run_program(os.path.join(self.site, "tensorhub/bin/tensorhub"))
        self.assertEqual(out.returncode, 2)
        self.assertIn("PROGRAM is th", out.stderr)

    def test_its_plugins_are_there(self):
        entries = configparser.ConfigParser()
        entries.read_string(self.read(self.info, "entry_points.txt").decode())
        for framework in ("vllm.general_plugins", "sglang.srt.plugins"):
            module, function = entries[framework]["tensorhub"].split(":")
            source = self.read(module.replace(".", "/") + ".py").decode()
            self.assertIn("\ndef %s()" % function, source)

    def test_the_demo_runs(self):
        out = self.run_program(os.path.join(self.site, "tensorhub/bin/th"), "demo", "--bytes", "16MiB", "--synthetic", "llm",
                               "--rollouts", "2", "--rate", "20MB/s")
        self.assertEqual(out.returncode, 0, out.stdout[-3000:] + out.stderr[-3000:])
        self.assertIn("GOOD", out.stdout)

    def test_two_processes_publish_and_update(self):
        publisher = """
import sys, tensorhub
weights = bytearray(b"w" * 1000)
with tensorhub.serve() as server:
    hub = tensorhub.join(server.address, run="r", model="m", group="trainer")
    with hub.register({"w": weights}).published(1):
        print(server.address, flush=True)
        sys.stdin.read()
"""
        reader = """
import sys, tensorhub
weights = bytearray(1000)
hub = tensorhub.join(sys.argv[1], run="r", model="m", group="rollout")
result = hub.register({"w": weights}).update("latest")
print(result.moved, weights == b"w" * 1000)
"""
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": self.site}
        with subprocess.Popen([sys.executable, "-c", publisher], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env=env) as process:
            address = process.stdout.readline().strip()
            out = self.run_program(sys.executable, "-c", reader, address)
            process.stdin.close()
            self.assertEqual(process.wait(60), 0)
        self.assertEqual(out.stdout.strip(), "True True", out.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
