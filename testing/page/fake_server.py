"""A server of the page without a server: a fleet that is made up from a seed and moves on with time.

  testing/page/fake_server.py --replicas 40 --fills 6 --port 8080      then open http://127.0.0.1:8080/

A trainer publishes one version after the other, and the fills sweep over the rollouts: each reads from replicas that
the same sweep has reached before, of its own site where there is one. The whole fleet is a function of the seed and of
the seconds since the start.
"""

import argparse
import datetime
import http.server
import json
import pathlib
import random
import threading
import time
from typing import Callable, NamedTuple

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "th" / "server" / "page" / "page.html"
EPOCH = 28452946
BEGAN = datetime.datetime(2026, 11, 26, 18, 30, tzinfo=datetime.timezone.utc)
GB = 10**9
# The seconds that a fill takes on average; single ones take between 0.6 and 1.4 times as long.
FILL_S = 12.0
RANKS = 2
MOST_EVENTS = 300
MOST_VERSIONS = 20


def time_text(seconds: float) -> str:
    """The time of the fleet `seconds` after its start, as the server writes it."""
    return (BEGAN + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class Fill(NamedTuple):
    """One update of one rollout. Fills are numbered through all sweeps."""

    index: int
    began_s: float
    duration_s: float

    def share(self, now_s: float) -> float:
        return min(1.0, max(0.0, (now_s - self.began_s) / self.duration_s))


class Fleet:
    """`picture(now_s)` is the state.json of a fleet that started `now_s` seconds ago."""

    def __init__(self, replicas: int, fills: int, seed: int, run: str = "r1", model: str = "qwen3-30b") -> None:
        if replicas < 2 or fills < 0:
            raise ValueError("a fleet has at least a trainer and a rollout, and no negative number of fills")
        self.rollouts = replicas - 1
        self.fills = min(fills, self.rollouts)
        self.seed = seed
        self.run, self.model = run, model
        self.sites = ["eu-west", "us-east", "us-west"][: 1 + (replicas > 8) + (replicas > 300)]
        self.racks = max(2, min(8, replicas // 12))
        self.bytes = 61 * GB

    # What happens when -------------------------------------------------------------------------

    def interval_s(self) -> float:
        """Between the beginnings of two fills: so that about as many are under way as were asked for."""
        return FILL_S / self.fills

    def fill(self, index: int) -> Fill:
        draw = random.Random("%d fill %d" % (self.seed, index))
        return Fill(index, index * self.interval_s(), FILL_S * draw.uniform(0.6, 1.4))

    def begun(self, now_s: float) -> int:
        """How many fills have begun; one sweep, the first, lies before the start."""
        sweep_s = self.rollouts * self.interval_s() if self.fills else 0.0
        return self.rollouts + int((now_s + sweep_s) / self.interval_s()) - self.rollouts if self.fills else self.rollouts

    def clock_s(self, now_s: float) -> float:
        """The time on the scale of the fills' beginnings."""
        return now_s + (self.rollouts * self.interval_s() if self.fills else 0.0)

    def sweep(self, index: int) -> int:
        return index // self.rollouts

    def place(self, rollout: int) -> tuple[str, str]:
        draw = random.Random("%d place %d" % (self.seed, rollout))
        return draw.choice(self.sites), "rack-%d" % (1 + draw.randrange(self.racks))

    def sources(self, fill: Fill) -> list[list]:
        """Up to two groups that this sweep has reached before, near ones first; else the trainer."""
        site = self.place(fill.index % self.rollouts)[0]
        first = self.sweep(fill.index) * self.rollouts
        before = range(max(first, fill.index - 3 * self.fills), fill.index)
        near = [i for i in before if self.place(i % self.rollouts)[0] == site and fill.index - i > self.fills // 2]
        if not near:
            return [["trainer", RANKS]]
        draw = random.Random("%d sources %d" % (self.seed, fill.index))
        chosen = draw.sample(near, min(len(near), draw.choice([1, 1, 2])))
        return [[self.group(i % self.rollouts), RANKS // len(chosen)] for i in chosen]

    # What it looks like ------------------------------------------------------------------------

    @staticmethod
    def group(rollout: int) -> str:
        return "rollout-%d" % rollout

    def version(self, sweep: int) -> tuple[str, str]:
        return "%d.%d" % (EPOCH, sweep + 1), "step-%d" % (sweep + 1)

    def event_id(self, index: int) -> str:
        return "%d-%d" % (EPOCH, 10 + 2 * index)

    def picture(self, now_s: float) -> dict:
        begun = self.begun(now_s)
        newest = self.sweep(begun) if self.fills else 0
        rollouts = [self.rollout(i, begun, now_s) for i in range(self.rollouts)]
        readers: dict[str, int] = {}
        for replica in rollouts:
            for group, _ in replica["sources"]:
                readers[group] = readers.get(group, 0) + 1
        for replica in rollouts:
            replica["readers"] = readers.get(replica["group"], 0)
        moved = max(0, begun - self.fills)
        return {
            "server": {
                "address": "10.0.0.1:7077",
                "version": "0.1 fake",
                "epoch": EPOCH,
                "uptime_s": round(now_s, 3),
                "time": time_text(now_s),
                "workers": (self.rollouts + 1) * RANKS,
                "recovering": False,
            },
            "models": [
                {
                    "run": self.run,
                    "model": self.model,
                    "keep_latest": 2,
                    "left_out": 0,
                    "versions": self.versions(newest),
                    "replicas": [self.trainer(newest, readers.get("trainer", 0)), *rollouts],
                    "stall_s": {
                        "resolve": 0.02 * moved,
                        "queue": 0.9 * moved,
                        "transfer": RANKS * FILL_S * moved,
                        "verify": 0.4 * moved,
                        "apply": 1.1 * moved,
                        "drain": 0.3 * moved,
                        "failed": 0,
                    },
                    "received_bytes": self.bytes * moved,
                    "copies_sent": float(moved),
                }
            ],
            "events": self.events(begun, now_s),
        }

    def versions(self, newest: int) -> list[dict]:
        return [
            {
                "number": self.version(sweep)[0],
                "label": self.version(sweep)[1],
                "bytes": self.bytes,
                "published": newest - sweep < 3,
                "withdrawn": False,
                "lost": newest - sweep == 2 and sweep % 3 == 0,
                "pins": int(sweep % 5 == 0),
            }
            for sweep in range(newest, max(-1, newest - MOST_VERSIONS), -1)
        ]

    def replica(self, **fields) -> dict:
        known = {
            "buffer": "weights",
            "form": "hf",
            "role": "primary",
            "publisher": False,
            "ranks": RANKS,
            "connected": RANKS,
            "bytes": self.bytes,
            "held": self.bytes,
            "readers": 0,
            "sources": [],
            "transports": [],
            "operation": "",
            "operation_s": 0,
            "event": "",
        }
        return {**known, **fields}

    def trainer(self, newest: int, readers: int) -> dict:
        number, label = self.version(newest)
        return self.replica(
            group="trainer",
            state="published",
            version=number,
            label=label,
            publisher=True,
            site=self.sites[0],
            rack="rack-1",
            hosts=["trainer-0", "trainer-1"],
            readers=readers,
        )

    def rollout(self, rollout: int, begun: int, now_s: float) -> dict:
        """A rollout's last fill is the last one that has begun of those with its number modulo the rollouts."""
        index = begun - 1 - (begun - 1 - rollout) % self.rollouts
        site, rack = self.place(rollout)
        fixed = {"group": self.group(rollout), "site": site, "rack": rack, "hosts": ["node-%d" % rollout]}
        if rollout % 61 == 23:
            return self.replica(state="idle", version="", label="", bytes=0, held=0, **fixed)
        if not self.fills:
            number, label = self.version(0)
            return self.replica(state="complete", version=number, label=label, **fixed)
        fill = self.fill(index)
        number, label = self.version(self.sweep(index))
        share = fill.share(self.clock_s(now_s))
        fixed.update(version=number, label=label)
        if share < 1.0:
            return self.replica(
                state="filling",
                held=int(self.bytes * share),
                sources=self.sources(fill),
                transports=["ibverbs"] if site == self.sites[0] else ["tcp"],
                operation="update",
                operation_s=round(self.clock_s(now_s) - fill.began_s, 3),
                event=self.event_id(index),
                **fixed,
            )
        if rollout % 47 == 11:
            return self.replica(state="leaving", **fixed)
        # The next ones of the sweep drain before they fill.
        state = "draining" if index + self.rollouts - begun < 1 else "complete"
        return self.replica(state=state, **fixed)

    def events(self, begun: int, now_s: float) -> list[dict]:
        """Each fill begins and ends; some give up a source in between."""
        happened = []
        clock_s = self.clock_s(now_s)
        for index in range(max(0, begun - MOST_EVENTS), begun if self.fills else 0):
            fill = self.fill(index)
            number, label = self.version(self.sweep(index))
            id_ = self.event_id(index)
            group = self.group(index % self.rollouts)
            if index % self.rollouts == 0:
                publication = "%d-%d" % (EPOCH, 9 + 2 * index)
                happened.append((fill.began_s - 0.01, "published", publication, "trainer", "%s (#%s)" % (label, number)))
            happened.append((fill.began_s, "update began", id_, group, "to %s (#%s)" % (label, number)))
            if index % 9 == 4:
                source = self.sources(fill)[0][0]
                at_s = fill.began_s + 0.4 * fill.duration_s
                happened.append((at_s, "source failed", id_, group, "%s: silent for 1.0 s; left" % source))
                happened.append((at_s + 0.05, "re-routed", id_, group, "to trainer"))
            ended_s = fill.began_s + fill.duration_s
            what = "%s (#%s) after %.1fs" % (label, number, fill.duration_s)
            happened.append((ended_s, "update moved", id_, group, what))
        began_s = clock_s - now_s  # of the server
        past = sorted(event for event in happened if began_s <= event[0] <= clock_s)
        return [
            {
                "n": int(at_s * 1000),
                "time": time_text(at_s - began_s),
                "kind": kind,
                "id": id_,
                "run": self.run,
                "model": self.model,
                "who": who,
                "what": what,
            }
            for at_s, kind, id_, who, what in past[-MOST_EVENTS:]
        ]


class PageServer:
    """Serves the page and what `answer` returns as state.json, on threads of its own, until it is closed.

    `answer` returns an object to be sent as JSON, or bytes to be sent as they are. It is called for one request at a
    time. With `silent` set, requests get status 503.
    """

    def __init__(self, answer: Callable[[], object], port: int = 0) -> None:
        self.silent = False
        self.asked = 0
        lock = threading.Lock()
        page_server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 (the name is the base class's)
                path = self.path.split("?")[0]
                if path in ("/", "/page.html"):
                    self.send(200, "text/html; charset=utf-8", PAGE.read_bytes())
                elif path == "/state.json" and page_server.silent:
                    self.send(503, "text/plain", b"silent\n")
                elif path == "/state.json":
                    with lock:
                        page_server.asked += 1
                        body = answer()
                    self.send(200, "application/json", body if isinstance(body, bytes) else json.dumps(body).encode())
                else:
                    self.send(404, "text/plain", b"there is / and /state.json\n")

            def send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return "http://127.0.0.1:%d/" % self.port

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=40, help="groups, the trainer among them (%(default)s)")
    parser.add_argument("--fills", type=int, default=6, help="how many fill at a time, about (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0: the system chooses one (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        fleet = Fleet(options.replicas, options.fills, options.seed)
    except ValueError as error:
        parser.error(str(error))
    began = time.monotonic()
    server = PageServer(lambda: fleet.picture(time.monotonic() - began), options.port)
    print("the page is at %s" % server.url, flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()
