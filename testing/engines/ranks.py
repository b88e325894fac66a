"""Processes that are the ranks of one torch.distributed world (gloo) and answer one request after another.

  @contextlib.contextmanager
  def counter(rank, ranks, begin):            # at the top of a module: each process imports it
      yield lambda request: begin + rank + request

  world = Ranks(counter, 2, 10)
  world.ask(1)                                # [11, 12]
  world.stop()
"""
import contextlib
import multiprocessing
import tempfile

import torch

ANSWER_WITHIN = 150  # seconds; the first answer of a rank waits for its process


def copies(named_tensors):
    """Clones of tensors, to answer with: torch moves a tensor that it sends to another process into shared memory, and one that is
    registered must not move."""
    return {name: tensor.detach().clone() for name, tensor in named_tensors}


def _run_rank(make, rank, ranks, rendezvous, arguments, pipe):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
    with make(rank, ranks, *arguments) as answer:
        for (request,) in iter(pipe.recv, None):
            pipe.send(answer(request))
    torch.distributed.destroy_process_group()


class Ranks:
    """Starts `ranks` processes. Each enters make(rank, ranks, *arguments), which yields the function that answers its requests."""

    def __init__(self, make, ranks, *arguments):
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._ranks = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_rank, name="%s %d" % (make.__name__, rank),
                                      args=(make, rank, ranks, self._folder.name + "/rendezvous", arguments, theirs))
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def ask(self, request):
        """The answers, by rank. The ranks work on them at the same time."""
        for _, pipe in self._ranks:
            pipe.send((request,))  # a tuple: None alone means stop
        answers = []
        for process, pipe in self._ranks:
            if not pipe.poll(ANSWER_WITHIN):
                raise TimeoutError("%s does not answer" % process.name)
            try:
                answers.append(pipe.recv())
            except EOFError:
                raise RuntimeError("%s has ended; stderr has why" % process.name) from None
        return answers

    def stop(self):
        for _, pipe in self._ranks:
            with contextlib.suppress(OSError):  # one that has ended reads no more
                pipe.send(None)
        for process, _ in self._ranks:
            process.join(ANSWER_WITHIN)
            process.kill()
        self._folder.cleanup()
