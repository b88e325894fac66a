"""The page for operators: its commands are run as a new operator would, its metrics are those of a server.

The programs are in PATH; the page's folders, ports and addresses are this test's own.
"""
import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest
import urllib.request

from docs import commands, tables

GRPC_PORT, HTTP_PORT, WORKER_PORT = "7077", "7078", "7079"
# What a reader of the page may have, and this machine may lack.
CURL = """#!/usr/bin/env python3
import sys, urllib.request
sys.stdout.write(urllib.request.urlopen(sys.argv[-1], timeout=10).read().decode())
"""


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True)
    parser.add_argument("--program", action="append", required=True)
    parser.add_argument("--model-file", required=True)
    return parser.parse_args()


OPTIONS = parse_arguments()


def page():
    return pathlib.Path(OPTIONS.page).read_text(encoding="utf-8")


def free_ports(count):
    """Ports that nobody has now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Host:
    """The machine of the page: programs, a model, a home, folders below /var."""

    def __init__(self, folder):
        self.folder = folder
        programs = folder / "programs"
        for place in ("programs", "models/qwen3-8b", "var/lib", "var/log", "home"):
            (folder / place).mkdir(parents=True)
        for program in OPTIONS.program:  # copies: `th bench` starts the server that lies beside itself, as where it is installed
            shutil.copy(program, programs)
        curl = programs / "curl"
        curl.write_text(CURL)
        curl.chmod(0o755)
        model = pathlib.Path(OPTIONS.model_file).resolve()
        (folder / "models/qwen3-8b" / "model.safetensors").symlink_to(model)
        self.grpc_port, self.http_port, self.worker_port = free_ports(3)
        self.environment = {"PATH": "%s:/usr/bin:/bin" % programs, "HOME": str(folder / "home")}

    def adapt(self, script):
        for page_has, here in (("/var/", "%s/var/" % self.folder), ("/models/", "%s/models/" % self.folder),
                               ("10.0.0.1", "127.0.0.1"), (GRPC_PORT, self.grpc_port), (HTTP_PORT, self.http_port), (WORKER_PORT, self.worker_port)):
            script = script.replace(page_has, here)
        return script


class OperationsTest(unittest.TestCase):

    def setUp(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.addCleanup(shutil.rmtree, folder)
        self.host = Host(folder)

    def test_its_commands_do_what_it_says(self):
        commands.Reader(self.host.folder, self.host.environment, self.host.adapt).follow(page())

    def served_metrics(self, command, ready):
        """{metric: type} of a program, once it has said that it is ready."""
        with subprocess.Popen(["bash", "-c", "exec %s 2>&1" % self.host.adapt(command)], env=self.host.environment,
                              stdout=subprocess.PIPE, text=True) as program:
            self.addCleanup(program.kill)
            self.assertTrue(any(ready in line for line in program.stdout), command)
            with urllib.request.urlopen(self.host.adapt("http://127.0.0.1:7078/metrics"), timeout=10) as answer:
                text = answer.read().decode()
            program.kill()
        return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))

    def listed_metrics(self, *header):
        (rows,) = tables.with_header(page(), header)
        types = {}
        for row in rows:
            names = [span.split("{")[0] for span in tables.code_spans(row[0])]
            kinds = [kind.rstrip("s") for kind in row[1].split(", ")]
            types.update(zip(names, kinds + kinds[-1:] * (len(names) - len(kinds))))
            self.assertTrue(all(row[1:4]), row[0])
        return types

    def test_its_metrics_are_those_of_a_server(self):
        server = "tensorhub_server --listen=127.0.0.1:0 --http=127.0.0.1:7078 --state-dir=/var/lib/metrics"
        self.assertEqual(self.listed_metrics("metric", "type", "unit", "means", "worth an alert"),
                         self.served_metrics(server, "listening on"))

    def test_its_metrics_of_a_worker_are_those_of_a_worker(self):
        worker = "tensorhub_worker follow --model m --server 10.0.0.1:7077 --http 127.0.0.1:7078"
        self.assertEqual(self.listed_metrics("metric of a worker", "type", "unit", "means"),
                         self.served_metrics(worker, "metrics at"))


if __name__ == "__main__":
    unittest.main(argv=["operations_test"], verbosity=2)
