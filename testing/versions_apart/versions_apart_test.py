"""Programs of two versions together: servers, publishers and followers mixed, and a server that is upgraded and set back.

Started by testing/versions_apart/run, which builds both: TENSORHUB_OLD and TENSORHUB_NEW are the folders of their programs.
"""

import itertools
import os
import subprocess
import unittest

from testing import checkpoint_files
from testing.started_processes import Processes
from testing.waiting import PATIENCE_S

PROGRAMS = {"old": os.environ["TENSORHUB_OLD"], "new": os.environ["TENSORHUB_NEW"]}
TENSOR_BYTES = 3_000_000  # more than one segment
TENSORS = 4


class VersionsApartTest(unittest.TestCase):

    def setUp(self) -> None:
        self.processes = Processes(self, "versions-apart-")
        self.folder = self.processes.folder
        self.address = "127.0.0.1:0"  # the first server chooses the port, and later ones take it over
        self.servers = 0
        for step in (1, 2, 3):
            checkpoint_files.write_checkpoint(self.folder / ("step-%d" % step), 10 * step, TENSORS, TENSOR_BYTES)

    def start(self, name: str, version: str, program: str, *arguments: str) -> subprocess.Popen:
        return self.processes.start(name, PROGRAMS[version] + "/" + program, *arguments)

    def server(self, version: str) -> subprocess.Popen:
        self.servers += 1
        name = "server-%d" % self.servers
        server = self.start(name, version, "tensorhub_server", "--listen", self.address, "--state-dir", "state")
        self.address = self.processes.await_text(server, r"listening on ([\d.:]+)").group(1)
        return server

    def publish(self, version: str, label: str, group: str) -> subprocess.Popen:
        publisher = self.start(group, version, "tensorhub_worker", "publish", "--dir", label, "--label", label,
                               "--group", group, "--ranks", "2", "--server", self.address)
        self.processes.await_text(publisher, "published")
        return publisher

    def follow(self, version: str, group: str) -> subprocess.Popen:
        return self.start(group, version, "tensorhub_worker", "follow", "--group", group, "--into", group,
                          "--server", self.address)

    def th(self, version: str, *arguments: str) -> str:
        done = subprocess.run([PROGRAMS[version] + "/th", *arguments, "--server", self.address], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def await_received(self, follower: subprocess.Popen, label: str) -> None:
        """Once the follower says that it has the version, its folder has the published bytes."""
        self.processes.await_text(follower, "version=" + label)
        (received,) = (self.folder / follower.name).glob("*-" + label)
        data = b"".join(file.read_bytes() for file in sorted(received.glob("*.safetensors")))
        for i in range(TENSORS):
            expected = checkpoint_files.tensor(10 * int(label.removeprefix("step-")), i, TENSOR_BYTES)
            self.assertIn(expected, data, "layer.%d of %s in %s" % (i, label, follower.name))

    def test_every_mixture_of_server_publisher_and_followers(self) -> None:
        for at, (server, publisher, first, second) in enumerate(itertools.product(PROGRAMS, repeat=4)):
            with self.subTest(server=server, publisher=publisher, first=first, second=second):
                serving = self.server(server)
                publishing = self.publish(publisher, "step-1", "trainer-%d" % at)
                followers = []
                for version, group in ((first, "first-%d" % at), (second, "second-%d" % at)):
                    followers.append(self.follow(version, group))
                    self.await_received(followers[-1], "step-1")
                for version in PROGRAMS:
                    self.assertIn("second-%d" % at, self.th(version, "list"))
                for process in (*followers, publishing, serving):
                    self.processes.end(process)

    def test_a_server_is_upgraded_and_set_back_under_workers_of_both(self) -> None:
        server = self.server("old")
        publishers = [self.publish("old", "step-1", "trainer-1")]
        followers = [self.follow(version, "follower-" + version) for version in PROGRAMS]
        for follower in followers:
            self.await_received(follower, "step-1")
        self.th("new", "pin", "step-1", "--owner", "eval")
        for step, version in ((2, "new"), (3, "old")):
            self.processes.end(server)
            server = self.server(version)
            label = "step-%d" % step
            publishers.append(self.publish("new" if version == "old" else "old", label, "trainer-%d" % step))
            for follower in followers:
                self.await_received(follower, label)
            self.assertIn("eval", self.th("old", "describe", "step-1"))
        for process in (*followers, *publishers, server):
            self.processes.end(process)


if __name__ == "__main__":
    unittest.main(verbosity=2)
