"""examples/rl_loop.py, shortened: the same rewards whichever way the weights move, and learning that survives a kill."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from fleet import PACKAGE

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/rl_loop.py")


class RlLoopTest(unittest.TestCase):
    def run_loop(self, *arguments):
        """{method: (first reward, last reward, steps a minute)}, and what was printed."""
        environment = {**os.environ, "PYTHONPATH": PACKAGE + os.pathsep + os.environ.get("PYTHONPATH", "")}
        with tempfile.TemporaryDirectory() as folder:
            svg = os.path.join(folder, "rewards.svg")
            out = subprocess.run([sys.executable, PROGRAM, "--svg", svg, *arguments], env=environment, text=True,
                                 capture_output=True, timeout=240)
            self.assertEqual(out.returncode, 0, out.stderr[-2000:])
            with open(svg) as file:
                self.assertIn("<polyline", file.read())
        rows = re.findall(r"^(tensorhub|gloo|file) +([\d.]+) +([\d.]+) +(\d+) ", out.stdout, re.MULTILINE)
        return {row[0]: tuple(map(float, row[1:])) for row in rows}, out.stdout

    def test_rewards_are_the_same_whichever_way_the_weights_move(self):
        courses, out = self.run_loop("--steps", "30")
        self.assertEqual(set(courses), {"tensorhub", "gloo", "file"}, out)
        self.assertEqual(len({course[:2] for course in courses.values()}), 1, out)
        self.assertGreater(courses["tensorhub"][1], courses["tensorhub"][0] + 0.05, "it has learnt something")

    def test_learning_goes_on_where_a_rollout_is_killed_and_another_joins(self):
        courses, out = self.run_loop("--method", "tensorhub", "--steps", "30", "--kill-at", "8")
        self.assertIn("a rollout was killed at step 8; another one answered from step 13 on", out)
        self.assertGreater(courses["tensorhub"][1], courses["tensorhub"][0] + 0.05)

    def test_what_cannot_be_meant_is_refused(self):
        for arguments, says in ((["--kill-at", "0"], "after the first"), (["--steps", "1"], "two steps"),
                                (["--kill-at", "8", "--rollouts", "1"], "give two"),
                                (["--kill-at", "8", "--method", "gloo"], "of the method tensorhub"),
                                (["--svg", "/nowhere/rewards.svg"], "there is no such folder"),
                                ([], "there is no tensorhub here")):
            out = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)
            self.assertEqual(out.returncode, 2, arguments)
            self.assertIn(says, out.stderr)


if __name__ == "__main__":
    unittest.main()
