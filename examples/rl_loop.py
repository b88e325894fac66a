"""Reinforcement learning of a small transformer, one trainer and several rollouts: its weights move by TensorHub, and beside it by
a broadcast of gloo and by a checkpoint file, which the same loop takes.

  python3 rl_loop.py                         # all three, 150 steps, two rollouts; a table, and rewards.svg
  python3 rl_loop.py --method tensorhub --kill-at 40

The task: given a digit d, answer d+1, d+2, ... (mod 10). The reward of an answer is the share of its tokens that are right. Each step every
rollout samples answers with the newest weights; the trainer takes one step of policy gradient on all of them, with the rewards compared
within the answers to one digit (as GRPO does), and hands its weights on. With --kill-at a rollout is killed with SIGKILL at that step, and another
one joins five steps later; the steps between are learnt from the others' answers. Needs torch, and tensorhub for its own method.
"""
import argparse
import dataclasses
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit("rl_loop.py: there is no torch here: pip install torch")

DIGITS, LENGTH, WIDTH, ANSWERS = 10, 6, 64, 16  # ANSWERS: to one digit
PROMPTS = 8  # of a rollout in a step
JOINS_AFTER = 5
METHODS = ("tensorhub", "gloo", "file")


class Policy(torch.nn.Module):
    """A transformer of two layers: the next token's logits for each place of the sequence."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(DIGITS, WIDTH)
        self.places = torch.nn.Embedding(LENGTH + 1, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, DIGITS)

    def forward(self, sequence):
        length = sequence.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(sequence) + self.places.weight[:length]
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def new_policy():
    torch.manual_seed(1)
    return Policy()


@torch.no_grad()
def sample(policy, generator):
    """Answers to PROMPTS digits, with their rewards: (sequences, rewards)."""
    digits = torch.randint(DIGITS, (PROMPTS, 1), generator=generator)
    sequences = digits.repeat_interleave(ANSWERS, dim=0)
    for _ in range(LENGTH):
        odds = policy(sequences)[:, -1].softmax(dim=-1)
        sequences = torch.cat([sequences, torch.multinomial(odds, 1, generator=generator)], dim=1)
    right = (sequences[:, :1] + torch.arange(1, LENGTH + 1)) % DIGITS
    return sequences, (sequences[:, 1:] == right).float().mean(dim=1)


def learn(policy, optimizer, batches):
    """One step on all rollouts' answers; the mean reward."""
    sequences = torch.cat([batch[0] for batch in batches])
    rewards = torch.cat([batch[1] for batch in batches])
    groups = rewards.reshape(-1, ANSWERS)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
    odds = policy(sequences[:, :-1]).log_softmax(dim=-1).gather(2, sequences[:, 1:, None])[..., 0]
    optimizer.zero_grad()
    (-(advantages * odds).mean()).backward()
    optimizer.step()
    return rewards.mean().item()


# ---- how weights move: what the trainer does after a step, and a rollout before the next

class TensorHub:
    def __init__(self, place, policy, name):
        import tensorhub
        self.hub = tensorhub.join(place, run="rl", model="policy", group=name)
        self.weights = self.hub.register(policy)

    def send(self, step):
        self.weights.publish(step)
        self.weights.await_published()

    def take_back(self):
        self.weights.unpublish()

    def receive(self, step):
        self.weights.update(self.hub.wait_for(step).selector)

    def close(self):
        self.hub.leave()


class Gloo:
    """All take part in every broadcast: nobody may be missing, and nobody can come later."""

    def __init__(self, place, policy, name):
        rank, size, address = place
        self.parameters = list(policy.parameters())
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)

    def send(self, step):
        for parameter in self.parameters:
            torch.distributed.broadcast(parameter.data, src=0)

    receive = send

    def take_back(self):
        pass

    def close(self):
        torch.distributed.destroy_process_group()


class File:
    def __init__(self, place, policy, name):
        self.path, self.policy = place, policy

    def send(self, step):
        new = "%s.%d" % (self.path, step)
        torch.save(self.policy.state_dict(), new + ".new")
        os.replace(new + ".new", new)
        if step > 0:
            os.remove("%s.%d" % (self.path, step - 1))

    def receive(self, step):
        path = "%s.%d" % (self.path, step)
        while not os.path.exists(path):
            time.sleep(0.001)  # a file tells nobody that it is there
        self.policy.load_state_dict(torch.load(path))

    def take_back(self):
        pass

    def close(self):
        pass


MOVERS = {"tensorhub": TensorHub, "gloo": Gloo, "file": File}


def be_rollout(method, place, number, life, pipe):
    """Answers each (step, last) with (sequences, rewards, seconds of waiting for the weights)."""
    torch.set_num_threads(1)
    policy = new_policy()
    mover = MOVERS[method](place, policy, "rollout-%d-%d" % (number, life))
    while True:
        step = pipe.recv()
        if step is None:
            break
        begin = time.monotonic()
        mover.receive(step)
        stall = time.monotonic() - begin
        generator = torch.Generator().manual_seed(1000 * step + number)
        pipe.send((*sample(policy, generator), stall))
    mover.close()


@dataclasses.dataclass
class Course:
    method: str
    rewards: list
    steps_a_minute: float
    stall: float  # of a rollout in a step, the median, in seconds
    answers: list  # how many rollouts each step has learnt from


class Rollouts:
    def __init__(self, method, places):
        self._context = multiprocessing.get_context("spawn")
        self._method, self._places = method, places
        self._running = {}  # number: (process, pipe)
        self._lives = [0] * len(places)

    def start(self, number):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=be_rollout, daemon=True, args=(
            self._method, self._places[number], number, self._lives[number], theirs))
        process.start()
        theirs.close()
        self._lives[number] += 1
        self._running[number] = (process, ours)

    def kill(self, number):
        process, pipe = self._running.pop(number)
        process.kill()
        process.join()
        pipe.close()

    def ask(self, step):
        for _, pipe in self._running.values():
            pipe.send(step)

    def answers(self):
        return [pipe.recv() for _, (_, pipe) in sorted(self._running.items())]

    def end(self):
        self.ask(None)
        for process, pipe in self._running.values():
            process.join()
            pipe.close()


def places_of(method, count, folder, server):
    """Where the trainer and each rollout meet."""
    if method == "gloo":
        address = "file://" + os.path.join(folder, "meeting")
        return [(rank, count + 1, address) for rank in range(count + 1)]
    return [server.address if method == "tensorhub" else os.path.join(folder, "policy.pt")] * (count + 1)


def run(method, options):
    server = None
    if method == "tensorhub":
        import tensorhub
        server = tensorhub.serve(quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        places = places_of(method, options.rollouts, folder, server)
        rollouts = Rollouts(method, places[1:])
        for number in range(options.rollouts):
            rollouts.start(number)
        policy = new_policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
        mover = MOVERS[method](places[0], policy, "trainer")
        rewards, stalls, answered = [], [], []
        begin = None
        for step in range(options.steps):
            if method == "tensorhub" and options.kill_at is not None:
                if step == options.kill_at:
                    rollouts.kill(options.rollouts - 1)
                elif step == options.kill_at + JOINS_AFTER:
                    rollouts.start(options.rollouts - 1)
            rollouts.ask(step)
            mover.send(step)
            batches = rollouts.answers()
            mover.take_back()  # from here on the weights may be written
            rewards.append(learn(policy, optimizer, batches))
            stalls += [batch[2] for batch in batches]
            answered.append(len(batches))
            if step == 0:  # it has started the processes
                begin, stalls = time.monotonic(), []
            if sys.stderr.isatty():
                print("\r%s: step %d of %d, reward %.3f" % (method, step + 1, options.steps, rewards[-1]), end="", file=sys.stderr)
        minutes = (time.monotonic() - begin) / 60
        rollouts.end()
        mover.close()
    if server is not None:
        server.stop()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return Course(method, rewards, (options.steps - 1) / minutes, statistics.median(stalls) if stalls else 0, answered)


def draw(courses, path):
    """The reward over the steps, a line a method."""
    width, height, colours = 640, 240, {"tensorhub": "#0b6", "gloo": "#26c", "file": "#c62"}
    steps = max(len(course.rewards) for course in courses)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">' % (width, height),
             '<rect width="100%%" height="100%%" fill="#fff"/><text x="8" y="14">reward, 0 to 1, over %d steps</text>' % steps]
    for i, course in enumerate(courses):
        points = " ".join("%.1f,%.1f" % (8 + (width - 16) * x / max(1, steps - 1), height - 20 - (height - 44) * y)
                          for x, y in enumerate(course.rewards))
        parts.append('<polyline fill="none" stroke="%s" stroke-width="%d" stroke-opacity=".7" points="%s"/>'
                     % (colours[course.method], 5 - 2 * i, points))
        parts.append('<text x="%d" y="14" fill="%s">%s</text>' % (240 + 110 * i, colours[course.method], course.method))
    with open(path, "w") as file:
        file.write("\n".join(parts + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, action="append", help="may be given several times (all)")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--kill-at", type=int, help="with TensorHub: kill a rollout at this step")
    parser.add_argument("--svg", default="rewards.svg", help="where the rewards are drawn (%(default)s)")
    options = parser.parse_args()
    if options.steps < 2 or options.rollouts < 1:
        parser.error("there are two steps and one rollout at least")
    methods = options.method or METHODS
    if options.kill_at is not None and "tensorhub" not in methods:
        parser.error("--kill-at is of the method tensorhub: with the others a rollout that is killed ends the loop")
    if options.kill_at is not None and (options.rollouts < 2 or not 0 < options.kill_at < options.steps - JOINS_AFTER):
        parser.error("--kill-at is a step after the first, %d before the end, and leaves a rollout: give two" % JOINS_AFTER)
    if not os.path.isdir(os.path.dirname(options.svg) or "."):
        parser.error("--svg %s: there is no such folder; make it, or name a file in another one" % options.svg)
    if "tensorhub" in methods and importlib.util.find_spec("tensorhub") is None:
        parser.error("there is no tensorhub here: pip install the wheel that tools/package makes, or leave that method out "
                     "(--method gloo --method file)")
    torch.set_num_threads(1)
    courses = [run(method, options) for method in methods]
    print("%-10s  %-12s  %-12s  %-14s  %s" % ("method", "first reward", "last reward", "steps a minute", "stall of a rollout"))
    for course in courses:
        print("%-10s  %-12.3f  %-12.3f  %-14.0f  %.1f ms" % (
            course.method, course.rewards[0], statistics.mean(course.rewards[-5:]), course.steps_a_minute, course.stall * 1e3))
        if min(course.answers) < options.rollouts:
            missing = [step for step, count in enumerate(course.answers) if count < options.rollouts]
            print("%-10s  a rollout was killed at step %d; another one answered from step %d on" % ("", missing[0], missing[-1] + 1))
    draw(courses, options.svg)


if __name__ == "__main__":
    main()
