"""Programs of two versions together: servers, publishers and followers mixed, and a server that is upgraded and set back.

Started by testing/versions_apart/run, which builds both: TENSORHUB_OLD and TENSORHUB_NEW are the folders of their programs.
"""

import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAMS = {"old": os.environ["TENSORHUB_OLD"], "new": os.environ["TENSORHUB_NEW"]}
PATIENCE_S = 60
TENSOR_BYTES = 3_000_000  # more than one segment
TENSORS = 4


def write_checkpoint(folder: pathlib.Path, fill: int) -> None:
    folder.mkdir()
    header = {
        "layer.%d" % i: {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES]}
        for i in range(TENSORS)
    }
    text = json.dumps(header).encode()
    body = b"".join(bytes([fill + i]) * TENSOR_BYTES for i in range(TENSORS))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Program:
    """A process, whose output is read until it says something."""

    def __init__(self, version: str, name: str, *arguments: str) -> None:
        self.command = [PROGRAMS[version] + "/" + name, *arguments]
        self._log = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(self.command, stdout=self._log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("%s does not say '%s':\n%s" % (" ".join(self.command), text, self.log()))
            time.sleep(0.05)

    def end(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if not self._log.closed:
            self._log.close()


class VersionsApartTest(unittest.TestCase):

    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="versions-apart-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.address = "127.0.0.1:%d" % free_port()
        for step in (1, 2, 3):
            write_checkpoint(self.folder / ("step-%d" % step), 10 * step)

    def start(self, version: str, name: str, *arguments: str) -> Program:
        program = Program(version, name, *arguments)
        self.addCleanup(program.kill)
        return program

    def server(self, version: str) -> Program:
        server = self.start(version, "tensorhub_server", "--listen", self.address, "--state-dir", str(self.folder / "state"))
        server.await_text("listening on")
        return server

    def publish(self, version: str, label: str, group: str) -> Program:
        publisher = self.start(version, "tensorhub_worker", "publish", "--dir", str(self.folder / label), "--label", label,
                               "--group", group, "--ranks", "2", "--server", self.address)
        publisher.await_text("published")
        return publisher

    def follow(self, version: str, group: str) -> Program:
        return self.start(version, "tensorhub_worker", "follow", "--group", group, "--into", str(self.folder / group),
                          "--server", self.address)

    def th(self, version: str, *arguments: str) -> str:
        done = subprocess.run([PROGRAMS[version] + "/th", *arguments, "--server", self.address], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def assert_received(self, group: str, label: str) -> None:
        (received,) = (self.folder / group).glob("*-" + label)
        data = b"".join(file.read_bytes() for file in sorted(received.glob("*.safetensors")))
        for i in range(TENSORS):
            fill = 10 * int(label.removeprefix("step-")) + i
            self.assertIn(bytes([fill]) * TENSOR_BYTES, data, "layer.%d of %s in %s" % (i, label, group))

    def test_every_mixture_of_server_publisher_and_followers(self) -> None:
        for at, (server, publisher, first, second) in enumerate(itertools.product(PROGRAMS, repeat=4)):
            with self.subTest(server=server, publisher=publisher, first=first, second=second):
                serving = self.server(server)
                publishing = self.publish(publisher, "step-1", "trainer")
                followers = []
                for version, group in ((first, "first-%d" % at), (second, "second-%d" % at)):
                    followers.append(self.follow(version, group))
                    followers[-1].await_text("version=step-1")
                    self.assert_received(group, "step-1")
                for version in PROGRAMS:
                    self.assertIn("second-%d" % at, self.th(version, "list"))
                for program in (*followers, publishing, serving):
                    self.assertEqual(program.end(), 0)

    def test_a_server_is_upgraded_and_set_back_under_workers_of_both(self) -> None:
        server = self.server("old")
        publishers = [self.publish("old", "step-1", "trainer-1")]
        followers = [self.follow(version, "follower-" + version) for version in PROGRAMS]
        for follower in followers:
            follower.await_text("version=step-1")
        self.th("new", "pin", "step-1", "--owner", "eval")
        for step, version in ((2, "new"), (3, "old")):
            self.assertEqual(server.end(), 0)
            server = self.server(version)
            label = "step-%d" % step
            publishers.append(self.publish("new" if version == "old" else "old", label, "trainer-%d" % step))
            for follower, group in zip(followers, PROGRAMS):
                follower.await_text("version=" + label)
                self.assert_received("follower-" + group, label)
            self.assertIn("eval", self.th("old", "describe", "step-1"))
        for program in (*followers, *publishers, server):
            self.assertEqual(program.end(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
