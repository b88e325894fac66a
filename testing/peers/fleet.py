"""One holder and some readers, each a process of its own, that a driver process takes through one run.

  class Gloo(fleet.Worker):           # one process: worker 0 is the holder, the others are readers
      def transfer(self): ...

  if __name__ == "__main__":
      fleet.main(Gloo)

`python -m MODULE SHAPE` is the driver: it starts `python -m MODULE SHAPE INDEX` for each worker and prints the Run as
one line of JSON. Driver and workers talk in lines of JSON over the workers' stdin and stdout; what a worker's libraries
print goes to stderr. How long a run may take is bounded by whoever started the driver, who also ends what it leaves.

The course: open (the holder first, its contact goes to the readers), connect (all at once), and twice, the first time to
warm up: prepare, evict, go, processor time, compare.
"""
import json
import os
import subprocess
import sys
import time

from testing.peers import content
from testing.peers import host_memory
from testing.peers import peer

HOLDER = 0
VERSIONS = (1, 2)  # the last one counts


class Worker:
    """What one process does. Each method is called in the worker's main thread, in the order of the course above.

    `memory` is where the bytes lie: written by `prepare` in the holder, received by `transfer` in a reader.
    """

    def __init__(self, shape, index):
        self.shape, self.index = shape, index
        self.is_holder = index == HOLDER
        self.memory = None

    def open(self, contact):
        """Allocates `memory`, opens what is needed. The holder returns what readers have to know, as a JSON object;
        it comes to them as `contact`."""
        self.memory = host_memory.HostMemory(self.shape.bytes)
        return {}

    def connect(self):
        """Called in all workers at once, after all have opened."""

    def prepare(self, version):
        if self.is_holder:
            content.fill(self.memory.view, version)

    def transfer(self):
        """In a reader: returns when all bytes are in `memory`. In the holder, at the same time: sends, if it has to do
        anything for it."""

    def matches(self, version):
        return content.matches(self.memory.view, version)

    def next_command(self, commands):
        """The next line. A worker that has to make progress meanwhile does it here."""
        return commands.readline()


def serve(worker, commands, answers):
    """Answers commands until there are no more."""
    used = {"before": 0.0}

    def go(_):
        used["before"] = time.process_time()
        worker.transfer()
        return {"ended": time.monotonic()}

    def compare(command):
        return {"matches": worker.matches(command["version"])}

    actions = {
        "open": lambda command: {"contact": worker.open(command["contact"])},
        "connect": lambda command: worker.connect() or {},
        "prepare": lambda command: worker.prepare(command["version"]) or {},
        "evict": lambda command: host_memory.evict_caches() or {},
        "go": go,
        "cpu": lambda command: {"seconds": time.process_time() - used["before"]},
        "compare": compare,
    }
    for line in iter(lambda: worker.next_command(commands), ""):
        command = json.loads(line)
        try:
            answer = actions[command["do"]](command)
        except Exception as error:  # whatever a peer's library raises is this run's failure
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(answer), file=answers, flush=True)


class Fleet:
    """The driver's side: the workers' processes."""

    def __init__(self, module, shape):
        command = [sys.executable, "-m", module, shape.to_json()]
        self.workers = [subprocess.Popen(command + [str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                        for index in range(shape.readers + 1)]
        self.readers = range(1, shape.readers + 1)

    def ask(self, indices, command):
        """The answers of these workers, who work at once. peer.Failed: one of them failed or has ended."""
        indices = list(indices)
        line = json.dumps(command) + "\n"
        for index in indices:
            try:
                self.workers[index].stdin.write(line)
                self.workers[index].stdin.flush()
            except BrokenPipeError:
                pass  # the missing answer says so
        return [self.answer_of(index, command["do"]) for index in indices]

    def answer_of(self, index, what):
        name = "reader %d" % index if index else "the holder"
        line = self.workers[index].stdout.readline()
        if not line:
            raise peer.Failed("%s ended at %s, with status %d" % (name, what, self.workers[index].wait()))
        answer = json.loads(line)
        if "error" in answer:
            raise peer.Failed("%s failed at %s: %s" % (name, what, answer["error"]))
        return answer

    def everybody(self, command):
        return self.ask(range(len(self.workers)), command)

    def end(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()


def measure(fleet, shape):
    """The course above: a Run."""
    contact = fleet.ask([HOLDER], {"do": "open", "contact": {}})[0]["contact"]
    fleet.ask(fleet.readers, {"do": "open", "contact": contact})
    fleet.everybody({"do": "connect"})
    for version in VERSIONS:
        fleet.everybody({"do": "prepare", "version": version})
        fleet.everybody({"do": "evict"})
        begin = time.monotonic()
        ended = [answer["ended"] for answer in fleet.everybody({"do": "go"})]
        used = [answer["seconds"] for answer in fleet.everybody({"do": "cpu"})]
        same = [answer["matches"] for answer in fleet.ask(fleet.readers, {"do": "compare", "version": version})]
    return peer.Run(last_reader_seconds=max(ended[1:]) - begin, holder_cpu_seconds=used[HOLDER],
                    readers_cpu_seconds=sum(used[1:]), bytes=shape.bytes, verified=all(same))


def drive(module, shape):
    fleet = Fleet(module, shape)
    try:
        return measure(fleet, shape)
    finally:
        fleet.end()


def keep_stdout():
    """This process's stdout as a file; whatever is printed from here on goes to stderr."""
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


def main(worker_class):
    module = sys.modules["__main__"].__spec__.name
    shape = peer.Shape.from_json(sys.argv[1])
    out = keep_stdout()
    if len(sys.argv) > 2:
        serve(worker_class(shape, int(sys.argv[2])), sys.stdin, out)
    else:
        report(out, lambda: drive(module, shape))
    out.flush()
    os._exit(0)  # several libraries crash when an interpreter is taken down


def report(out, run):
    """Prints the Run that `run()` returns, or why there is none; then this process ends."""
    try:
        print(run().to_json(), file=out, flush=True)
    except Exception as error:  # whatever a peer's library raises is this run's failure
        text = str(error) if isinstance(error, peer.Failed) else "%s: %s" % (type(error).__name__, error)
        print(json.dumps({"error": text}), file=out, flush=True)
        os._exit(1)
