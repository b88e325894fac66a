"""The one interface that tools/bench has to every peer.

  peer = catalog.find("gloo")
  peer.prepare(home, progress)              # installs it below the folder `home`; Unavailable says why it cannot be had
  run = peer.run(home, Shape(bytes=1 << 30, readers=2))
  print(run.last_reader_seconds, run.holder_cpu_seconds, run.readers_cpu_seconds)

One run is one holder and `readers` readers, each a process of its own on this machine, that move the same bytes as
`th bench transfer` does: new content, caches evicted on both sides, every reader's memory touched before. One transfer
warms up and is not counted. The clock starts when all readers are told to begin, and ends when the last reader has all
bytes in its own writable memory; afterwards every byte is compared with what the holder wrote.

A Peer is used by one thread. The modules of this package need nothing but Python's standard library to be imported;
what a peer installs is imported in the peer's own processes only.
"""
import dataclasses
import json
import os
import pathlib
import sys

from testing.peers import environment
from testing.peers import processes

HERE = pathlib.Path(os.path.abspath(__file__)).parent
ROOT = HERE.parent.parent
TRANSPORTS = ("tcp", "same_host")

MAX_READERS = 64
MAX_STREAMS = 64
# How long one run may take: starting its processes, two transfers, comparing the bytes.
RUN_TIMEOUT_SECONDS = 120
# What a slow peer may take more, for every GB that all readers together receive.
TIMEOUT_SECONDS_PER_GB = 30
# The memory that has to be left beside a run.
SPARE_BYTES = 1 << 30


class Unavailable(Exception):
    """This peer cannot be had on this machine; the text says why, and where possible what to do."""


class Failed(Exception):
    """A run did not come to its end, or its bytes were wrong; the text says what happened."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a run moves. `streams` is the number of connections (TCP) or copying threads of a reader, where a peer lets
    it be chosen. `congestion` names the congestion control of the network that the run is started in."""
    bytes: int
    readers: int = 1
    streams: int = 2
    transport: str = "tcp"
    congestion: str = ""

    def __post_init__(self):
        if self.bytes < 1:
            raise ValueError("a run moves at least one byte, not %d" % self.bytes)
        if not 1 <= self.readers <= MAX_READERS:
            raise ValueError("from 1 to %d readers, not %d" % (MAX_READERS, self.readers))
        if not 1 <= self.streams <= MAX_STREAMS:
            raise ValueError("from 1 to %d streams, not %d" % (MAX_STREAMS, self.streams))
        if self.transport not in TRANSPORTS:
            raise ValueError("the transport is one of %s, not %r" % (", ".join(TRANSPORTS), self.transport))

    def timeout_seconds(self):
        return RUN_TIMEOUT_SECONDS + TIMEOUT_SECONDS_PER_GB * self.bytes * self.readers / 1e9

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run came to. Processor time is what all processes of that side used, from the start of the clock until
    the last reader had its bytes; None where a peer does not let it be told. `bytes` is what each reader received, less
    than was asked for where a peer has a limit (Peer.most_bytes). `verified` is False only for a peer that throws the
    bytes away (Peer.discards): wrong bytes are a failed run."""
    last_reader_seconds: float
    holder_cpu_seconds: float
    readers_cpu_seconds: float
    bytes: int
    verified: bool = True

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text):
        """ValueError: `text` is not what to_json writes."""
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != {f.name for f in dataclasses.fields(cls)}:
            raise ValueError("this is no result of a run: %.200s" % text)
        return cls(**fields)


class Peer:
    """What all peers share. A peer is a subclass that says who it is and how its processes are started; its module is
    run by itself, in the Python that has what it needs, for each run (see `run`).

    name         on the command line and in JSON
    title        in tables
    transports   which of TRANSPORTS it can be compared over
    package      the distribution that it is; requirements/NAME.txt pins that and all that it needs. Empty: nothing is
                 installed
    imports      the modules that its processes import; empty: whether that works is seen when they run
    libraries    Debian's packages of the libraries that the module needs and its distribution does not bring
    memory       how often the bytes lie in memory during a run with R readers: memory[0] + memory[1] * R
    most_bytes   the most that a reader receives in one run; more is cut to it, and the table says so. 0: no limit
    discards     the readers throw the bytes away, so that they cannot be compared
    setting      how it was set up, for the table's notes, by transport
    """
    name = ""
    title = ""
    transports = ("tcp",)
    package = ""
    imports = ""
    libraries = ""
    memory = (1, 1)
    most_bytes = 0
    discards = False
    setting = {}

    def version(self, home):
        """Of what is installed below `home`, for the table."""
        return environment.pinned_version(self.requirements().read_text(encoding="ascii"), self.package)

    def requirements(self):
        """The file that says what is installed."""
        return HERE / "requirements" / (self.name + ".txt")

    def prepare(self, home, progress):
        """Installs what is missing below `home`; `progress` takes one line of text at a time. Raises Unavailable."""
        if not self.package:
            return
        try:
            environment.install(home, self.name, self.requirements(), progress)
            self.complete(home, progress)
        except environment.InstallError as error:
            raise Unavailable(str(error)) from error
        if self.imports:
            self.try_import(home)

    def complete(self, home, progress):
        """Adds to the installation what its distributions lack. Raises environment.InstallError."""

    def try_import(self, home):
        """Unavailable: the modules cannot be imported, with what is to be installed."""
        try:
            environment.run([self.python(home), "-c", "import " + self.imports])
        except environment.InstallError as error:
            remedy = "; install as root: apt-get install " + self.libraries if self.libraries else ""
            raise Unavailable("%s cannot be imported: %s%s" % (self.imports, error, remedy)) from error

    def python(self, home):
        """The Python of its processes."""
        return str(environment.python_of(home, self.name)) if self.package else sys.executable

    def environment(self, shape):
        """Environment variables of its processes, besides those that this process has."""
        return {}

    def bytes_of(self, shape):
        return min(shape.bytes, self.most_bytes) if self.most_bytes else shape.bytes

    def run(self, home, shape):
        """One run: a Run. Raises Unavailable where the machine is too small for it, and Failed."""
        shape = dataclasses.replace(shape, bytes=self.bytes_of(shape))
        needed = (self.memory[0] + self.memory[1] * shape.readers) * shape.bytes + SPARE_BYTES
        available = processes.available_memory()
        if available is not None and available < needed:
            raise Unavailable("it needs %.1f GB of memory for this, and %.1f GB are free" %
                              (needed / 1e9, available / 1e9))
        variables = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1",
                         PYTHONWARNINGS="ignore", **self.environment(shape))
        try:
            text = processes.last_line_of([self.python(home), "-m", type(self).__module__, shape.to_json()], variables,
                                          shape.timeout_seconds())
            run = Run.from_json(text)
        except (processes.ProcessError, ValueError) as error:
            raise Failed(str(error)) from error
        if not run.verified and not self.discards:
            raise Failed("a reader has other bytes than the holder")
        return run
