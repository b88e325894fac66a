"""A rollout of one rank: moves to two versions, as they come, and says what it holds."""
import array
import sys
import time

import tensorhub


def serve(server, group):
    values = array.array("f", bytes(4 * 1024 * 1024))
    with tensorhub.join(server, run="example", model="tiny", group=group) as hub:
        weights = hub.register({"layer.weight": memoryview(values)})
        moves = 0
        while moves < 2:
            result = weights.update("latest")
            if result.moved:
                moves += 1
                sources = " ".join(source["name"] for source in result.sources)
                print("version %s from %s: every weight is %g" % (result.version.label, sources, values[0]), flush=True)
            time.sleep(0.1)  # an engine answers requests here


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: rollout.py HOST:PORT GROUP")
    serve(sys.argv[1], sys.argv[2])
