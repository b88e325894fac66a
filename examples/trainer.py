"""A trainer of one rank: publishes two versions of its weights, one after the other."""
import array
import sys

import tensorhub


def train(server):
    values = array.array("f", bytes(4 * 1024 * 1024))  # a torch module as well, or a dict of numpy arrays
    with tensorhub.join(server, run="example", model="tiny", group="trainer") as hub:
        weights = hub.register({"layer.weight": memoryview(values)})  # copies nothing
        for step in (1, 2):
            values[:] = array.array("f", [step]) * len(values)  # an optimizer writes here
            with weights.published(step):  # `values` must not be written in here
                print("published %d; Enter ends it" % step, flush=True)
                sys.stdin.readline()  # rollouts read meanwhile


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: trainer.py HOST:PORT")
    train(sys.argv[1])
