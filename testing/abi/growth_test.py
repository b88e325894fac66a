"""The C interface has only grown: a program of the first header works, and what that declares is there still."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

CALLER, SERVER, FIRST_HEADER, HEADER = sys.argv[1:5]


def declarations(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def normal(code):
    return re.sub(r"\s+", " ", code).strip()


def structs(header):
    """{"th_tensor": ["size_t struct_size", "const char* name", ...]} in order."""
    found = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", declarations(header), re.DOTALL)
    return {name: [normal(field) for field in body.split(";") if field.strip()] for name, body in found}


def functions(header):
    return {re.search(r"(\w+)\(", each).group(1): normal(each)
            for each in re.findall(r"TH_EXPORT ([^;{]+);", declarations(header))}


def enumerators(header):
    return dict(re.findall(r"\b(TH_[A-Z_]+) = (\d+)", declarations(header)))


class GrowthTest(unittest.TestCase):

    def test_a_program_of_the_first_header_works(self):
        with tempfile.TemporaryDirectory() as state:
            server = subprocess.Popen([SERVER, "--listen=127.0.0.1:0", "--state-dir=" + state, "--json"],
                                      stdout=subprocess.PIPE)
            try:
                address = json.loads(server.stdout.readline())["address"]
                done = subprocess.run([CALLER, address], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (0, "works\n"), done.stderr)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()
                server.stdout.close()

    def test_structs_have_grown_at_their_end_only(self):
        first, now = structs(FIRST_HEADER), structs(HEADER)
        self.assertEqual(len(first), 6)
        for name, fields in first.items():
            self.assertEqual(now[name][:len(fields)], fields, name)

    def test_every_struct_begins_with_its_size(self):
        now = structs(HEADER)
        self.assertGreater(len(now), 10)
        for name, fields in now.items():
            self.assertEqual(fields[0], "size_t struct_size", name)

    def test_functions_are_what_they_were(self):
        first, now = functions(FIRST_HEADER), functions(HEADER)
        self.assertGreater(len(first), 20)
        for name, declaration in first.items():
            self.assertEqual(now.get(name), declaration)

    def test_constants_are_what_they_were(self):
        first, now = enumerators(FIRST_HEADER), enumerators(HEADER)
        self.assertGreater(len(first), 20)
        self.assertEqual({name: now.get(name) for name in first}, first)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
