"""The files of tools/slurm on a small Slurm cluster of this machine: a run, and what goes wrong in one.

Started by testing/slurm/run, which installs Slurm, builds the binaries and names their folder in TENSORHUB_BIN.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

from docs import commands
from testing import waiting
from testing.checkpoint_files import write_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
SCRIPTS = CHECKOUT / "tools" / "slurm"
# Slurm notices a node that failed after 10 s, and starts a job again some seconds later.
PATIENCE_S = 120


def until(condition, what: str, explain):
    return waiting.until(condition, what, explain, PATIENCE_S)


class Cluster:
    """Five nodes, and a folder that all of them see."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)  # munge runs as a user of its own
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self.environment = dict(os.environ, MINI_SLURM_DIR=str(self.folder / "slurm"), TENSORHUB_DIR=str(self.shared))
        for variable in [name for name in self.environment if name.startswith(("SLURM_", "SBATCH_"))]:
            del self.environment[variable]
        try:
            self._mini("up")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._mini("down")
        shutil.rmtree(self.folder)

    def _mini(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [str(HERE / "mini_slurm.sh"), *arguments],
            env=dict(self.environment, **environment),
            cwd=self.shared,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            raise AssertionError("%s: status %d\n%s" % (" ".join(arguments), done.returncode, done.stdout))
        return done.stdout

    @property
    def head_command(self) -> str:
        """The words of a shell that run what follows them on the head node."""
        return "%s exec" % (HERE / "mini_slurm.sh")

    def head(self, *command: str, **environment: str) -> str:
        return self._mini("exec", *command, **environment)

    def submit(self, script: str, *options: str, **environment: str) -> str:
        """The job's id."""
        out = self.head("sbatch", "--parsable", *options, str(SCRIPTS / script), **environment)
        return out.strip().split(";")[0]

    def node_of(self, job: str) -> str:
        """Where a job runs; waits until it does."""
        return until(lambda: self._running_on(job), "job %s runs" % job, self.explain)

    def _running_on(self, job: str) -> str:
        return self.head("squeue", "--noheader", "--states=RUNNING", "--format=%N", "--jobs=" + job).strip()

    def kill_node(self, node: str) -> None:
        self._mini("kill-node", node)

    def start_node(self, node: str) -> None:
        self._mini("start-node", node)

    def cut(self, node: str) -> None:
        self._mini("cut", node)

    def join(self, node: str) -> None:
        self._mini("join", node)

    def log(self, name: str) -> str:
        path = self.shared / name
        return path.read_text(errors="replace") if path.exists() else ""

    def await_log(self, name: str, text: str, times: int = 1) -> None:
        until(lambda: self.log(name).count(text) >= times, "%d times '%s' in %s" % (times, text, name), self.explain)

    def th(self, *arguments: str) -> str:
        return self.head(
            os.environ["TENSORHUB_BIN"] + "/th", *arguments, "--server", "file:%s/address" % self.shared
        )

    def explain(self) -> str:
        logs = "".join("==== %s\n%s" % (path.name, self.log(path.name)[-3000:]) for path in self.shared.glob("*.log"))
        return self.head("squeue", "--long") + self.head("sinfo", "--Node", "--long") + logs


class SlurmTest(unittest.TestCase):
    """Each scene begins with a server on one node, a trainer on two and rollouts that have its version."""

    ROLLOUTS = 2

    def setUp(self) -> None:
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        write_checkpoint(self.cluster.folder / "first", 1)
        write_checkpoint(self.cluster.folder / "second", 2)
        self.server = self.cluster.submit("server.sbatch", "--output=server.log")
        self.server_node = self.cluster.node_of(self.server)
        self.trainer = self.publish("first", "step-1", "trainer")
        # Each on nodes of its own, so that a scene takes away what it means to.
        self.rollouts = self.cluster.submit(
            "rollouts.sbatch",
            "--array=0-%d" % (self.ROLLOUTS - 1),
            "--exclude=%s,%s" % (self.server_node, self.cluster.node_of(self.trainer)),
            "--output=rollout-%a.log",
            PREEMPT_GRACE="2s",
        )
        for rollout in range(self.ROLLOUTS):
            self.cluster.await_log("rollout-%d.log" % rollout, "version=step-1")

    def publish(self, checkpoint: str, label: str, group: str) -> str:
        job = self.cluster.submit(
            "trainer.sbatch",
            "--nodes=2",
            "--exclude=" + self.server_node,
            "--output=%s.log" % group,
            CHECKPOINT=str(self.cluster.folder / checkpoint),
            LABEL=label,
            GROUP=group,
        )
        self.cluster.await_log("%s.log" % group, "published", times=2)
        return job

    def array_task(self, task: int) -> str:
        return "%s_%d" % (self.rollouts, task)

    def test_a_run(self) -> None:
        self.publish("second", "step-2", "trainer-2")
        for rollout in range(self.ROLLOUTS):
            self.cluster.await_log("rollout-%d.log" % rollout, "version=step-2")
        # Racks are those of Slurm's switches: every replica names one.
        described = self.cluster.th("describe", "rollout-%s-0" % self.rollouts)
        self.assertIn("rack=rack", described)
        self.assertIn('"kind":"published"', (self.cluster.shared / "events").read_text())
        more = self.cluster.submit("rollouts.sbatch", "--array=7", "--output=rollout-%a.log")
        self.cluster.await_log("rollout-7.log", "version=step-2")
        self.cluster.head("scancel", more)

    def test_a_node_that_fails(self) -> None:
        node = self.cluster.node_of(self.array_task(0))
        self.cluster.kill_node(node)
        self.cluster.await_log("rollout-0.log", "version=step-1", times=2)
        self.assertNotEqual(self.cluster.node_of(self.array_task(0)), node)

    def test_a_server_that_comes_back_on_another_node(self) -> None:
        before = self.cluster.log("address")
        self.cluster.kill_node(self.server_node)
        until(lambda: self.cluster.log("address") != before, "another address", self.cluster.explain)
        self.assertNotEqual(self.cluster.node_of(self.server), self.server_node)
        self.publish("second", "step-2", "trainer-2")
        for rollout in range(self.ROLLOUTS):
            self.cluster.await_log("rollout-%d.log" % rollout, "version=step-2")

    def test_a_rollout_that_is_preempted(self) -> None:
        self.cluster.head("scancel", "--batch", "--signal=TERM", self.array_task(0))
        self.cluster.await_log("rollout-0.log", "leaving in 2s")
        group = "rollout-%s-0" % self.rollouts
        until(lambda: group not in self.cluster.th("list"), group + " has left", self.cluster.explain)
        self.publish("second", "step-2", "trainer-2")
        self.cluster.await_log("rollout-1.log", "version=step-2")

    def test_a_rollout_that_is_cut_off_and_comes_back(self) -> None:
        node = self.cluster.node_of(self.array_task(0))
        self.cluster.cut(node)
        # Slurm calls the node down and starts the task elsewhere; here it goes on meanwhile.
        self.cluster.await_log("rollout-0.log", "version=step-1", times=2)
        self.assertNotEqual(self.cluster.node_of(self.array_task(0)), node)
        self.cluster.join(node)
        self.publish("second", "step-2", "trainer-2")
        self.cluster.await_log("rollout-0.log", "version=step-2")
        # Only one process is the rollout, the one that Slurm started last.
        described = self.cluster.th("describe", "rollout-%s-0" % self.rollouts)
        self.assertIn("step-2", described)


class PageTest(unittest.TestCase):
    """docs/slurm.md as a reader follows it, on the head node."""

    def test_its_commands_do_what_it_says(self) -> None:
        cluster = Cluster()
        self.addCleanup(cluster.close)
        write_checkpoint(cluster.folder / "qwen3-8b", 1)

        def adapt(script: str) -> str:
            here = script.replace("/shared/me/run-7", str(cluster.shared))
            here = here.replace("/shared/models", str(cluster.folder))
            here = here.replace("/shared/tensorhub/bin", os.environ["TENSORHUB_BIN"])
            return "%s bash -euo pipefail -c %s" % (cluster.head_command, shlex.quote(here))

        # The page's links into the checkout hold; what jobs print goes into the folder where they were submitted.
        (cluster.shared / "tools").symlink_to(CHECKOUT / "tools")
        page = (CHECKOUT / "docs" / "slurm.md").read_text(encoding="utf-8")
        environment = dict(cluster.environment, PREEMPT_GRACE="2s")
        try:
            commands.Reader(cluster.shared, environment, adapt).follow(page)
        except commands.PageError as error:
            self.fail("%s\n%s" % (error, cluster.explain()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
