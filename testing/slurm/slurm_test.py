"""The files of tools/slurm on a small Slurm cluster of this machine: a run, and what goes wrong in one.

Started by testing/slurm/run, which installs Slurm, builds the binaries and names their folder in TENSORHUB_BIN.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
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

    def kill_daemon(self, node: str) -> None:
        self._mini("kill-daemon", node)

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

    def replica_of(self, group: str) -> tuple[str, set]:
        """A group's version, and (host name, connected) of its ranks, as `th describe` has them."""
        described = json.loads(self.th("describe", group, "--json").splitlines()[-1])
        (replica,) = described["replicas"]
        hosts = {
            (dict(field.split("=", 1) for field in rank["location"].split(","))["host-name"], rank["connected"])
            for rank in replica["ranks"]
        }
        return replica["version"], hosts

    def explain(self) -> str:
        logs = "".join("==== %s\n%s" % (path.name, self.log(path.name)[-3000:]) for path in self.shared.glob("*.log"))
        return self.head("squeue", "--long") + self.head("sinfo", "--Node", "--long") + logs


def processes():
    """(process, path in /proc) of all that run; zombies have ended."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            yield int(path.name), path


def words_of(path: pathlib.Path):
    """The words of a process' file of them; none where it has just ended."""
    try:
        return path.read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def worker_on(node: str, group: str) -> int:
    """The worker of a group whose task Slurm has started on this node."""
    (found,) = [
        process
        for process, path in processes()
        if group in words_of(path / "cmdline") and "SLURMD_NODENAME=" + node in words_of(path / "environ")
    ]
    return found


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
        into = self.cluster.shared / "into"
        more = self.cluster.submit("rollouts.sbatch", "--array=7-8", "--output=rollout-%a.log", INTO=str(into))
        for rollout in (7, 8):
            self.cluster.await_log("rollout-%d.log" % rollout, "version=step-2")
            self.assertTrue(list((into / ("rollout-%s-%d" % (more, rollout))).rglob("*.safetensors")), rollout)
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
        group = "rollout-%s-0" % self.rollouts
        node = self.cluster.node_of(self.array_task(0))
        old = worker_on(node, group)
        # Slurm would kill the old process once it sees the node again; here it is TensorHub that has to refuse it.
        self.cluster.kill_daemon(node)
        self.cluster.cut(node)
        # Slurm calls the node down and starts the task elsewhere; here it goes on meanwhile.
        self.cluster.await_log("rollout-0.log", "version=step-1", times=2)
        started_last = self.cluster.node_of(self.array_task(0))
        self.assertNotEqual(started_last, node)
        self.assertIn(old, dict(processes()))
        self.assertNotIn("MEMBERSHIP_ENDED", self.cluster.log("rollout-0.log"))
        self.cluster.join(node)
        self.cluster.await_log("rollout-0.log", "MEMBERSHIP_ENDED")
        until(lambda: old not in dict(processes()), "the old process has ended", self.cluster.explain)
        # Both write into this log, so the server is asked which of them has the new version.
        self.publish("second", "step-2", "trainer-2")
        until(lambda: "step-2" in self.cluster.replica_of(group)[0], group + " has step-2", self.cluster.explain)
        self.assertEqual(self.cluster.replica_of(group)[1], {(started_last, True)})
        self.assertEqual(self.cluster.node_of(self.array_task(0)), started_last)
        worker_on(started_last, group)


class ScriptsTest(unittest.TestCase):
    """What the batch files do by themselves; programs that note their arguments stand in for ours, and for sleep."""

    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-scripts-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()

    def stand_in(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.write_text('#!/bin/bash\nprintf "%%s\\n" %s "$@" >>"$TENSORHUB_DIR/calls"\n%s\n' % (name, script))
        path.chmod(0o755)

    def start(self, script: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            ["bash", str(SCRIPTS / script)],
            env=dict(os.environ, TENSORHUB_BIN=str(self.folder / "bin"), TENSORHUB_DIR=str(self.folder), **environment),
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def calls(self):
        """The words of all calls so far, each program's name first."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def await_call(self, word: str) -> None:
        until(lambda: word in self.calls(), "a call of " + word, lambda: "\n".join(self.calls()))

    def test_a_server_whose_state_is_in_use_is_tried_again(self) -> None:
        self.stand_in("tensorhub_server", 'exit $(($(grep -c tensorhub_server "$TENSORHUB_DIR/calls") < 3 ? 4 : 5))')
        self.stand_in("sleep", "exit 0")
        self.assertEqual(self.start("server.sbatch").wait(PATIENCE_S), 5)
        self.assertEqual((self.calls().count("tensorhub_server"), self.calls().count("sleep")), (3, 2))

    def test_a_server_that_is_told_to_end_between_two_tries_is_not_started_again(self) -> None:
        self.stand_in("tensorhub_server", "exit 4")
        self.stand_in("sleep", "exec /bin/sleep 300")
        job = self.start("server.sbatch")
        self.await_call("sleep")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE_S), 4)
        self.assertEqual(self.calls().count("tensorhub_server"), 1)

    def test_a_server_that_runs_is_told_to_end_and_its_status_is_the_jobs(self) -> None:
        wait = "trap 'kill $!; exit 7' TERM\n/bin/sleep 300 &\necho ready >>\"$TENSORHUB_DIR/calls\"\nwait"
        self.stand_in("tensorhub_server", wait)
        job = self.start("server.sbatch")
        self.await_call("ready")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE_S), 7)
        self.assertEqual(self.calls().count("tensorhub_server"), 1)

    def test_each_rollout_has_a_folder_of_its_own(self) -> None:
        self.stand_in("tensorhub_worker", "exit 0")
        into = str(self.folder / "of weights")
        for task in ("0", "1"):
            job = self.start("rollouts.sbatch", SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID=task, INTO=into)
            self.assertEqual(job.wait(PATIENCE_S), 0)
        self.assertEqual(self.start("rollouts.sbatch", SLURM_JOB_ID="13").wait(PATIENCE_S), 0)
        calls = self.calls()
        folders = [value for option, value in zip(calls, calls[1:]) if option == "--into"]
        groups = [value for option, value in zip(calls, calls[1:]) if option == "--group"]
        self.assertEqual(groups, ["rollout-12-0", "rollout-12-1", "rollout-13-0"])
        self.assertEqual(folders, [into + "/rollout-12-0", into + "/rollout-12-1"])


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
