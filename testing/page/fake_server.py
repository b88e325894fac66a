"""A server of the page without a server: a fleet that is made up from a seed and moves on with time.

  python3 testing/page/fake_server.py --replicas 40 --fills 6 --port 8080      then open http://127.0.0.1:8080/

A trainer publishes one version after the other, and the fills sweep over the rollouts: each reads from replicas that
the same sweep has reached before, of its own site where there is one. The whole fleet is a function of the seed and of
the seconds since the start.
"""

import argparse
import collections
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
# The bytes of a version.
WHOLE = 61 * 10**9
# The seconds that a fill takes on average; single ones take between 0.6 and 1.4 times as long.
FILL_S = 12.0
RANKS = 2
MOST_EVENTS = 300
MOST_VERSIONS = 20


def time_text(seconds: float) -> str:
    """The time of the fleet `seconds` after its start, as the server writes it."""
    return (BEGAN + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def replica(**fields) -> dict:
    """A replica that holds all its bytes and does nothing."""
    known = {
        "buffer": "weights",
        "form": "hf",
        "role": "primary",
        "state": "complete",
        "publisher": False,
        "ranks": RANKS,
        "connected": RANKS,
        "bytes": WHOLE,
        "held": fields.get("bytes", WHOLE),
        "site": "",
        "rack": "",
        "hosts": [],
        "readers": 0,
        "sources": [],
        "transports": [],
        "operation": "",
        "operation_s": 0,
        "event": "",
    }
    return {**known, **fields}


def version(number: str, label: str, **fields) -> dict:
    known = {"bytes": WHOLE, "published": True, "withdrawn": False, "lost": False, "pins": 0}
    return {"number": number, "label": label, **known, **fields}


def model(run: str, name: str, versions: list[dict], replicas: list[dict], **fields) -> dict:
    known = {"keep_latest": 2, "left_out": 0, "stall_s": {}, "longest_stalls": [], "received_bytes": 0, "copies_from_publisher": 0.0}
    return {"run": run, "model": name, "versions": versions, "replicas": replicas, **known, **fields}


def stalled(rank: str, **stall_s: float) -> dict:
    return {"rank": rank, "buffer": "weights", "stall_s": stall_s}


def event(at_s: float, kind: str, id_: str, who: str, what: str, **fields) -> dict:
    known = {"n": round(at_s * 1000), "time": time_text(at_s), "run": "r1", "model": "m"}
    return {**known, "kind": kind, "id": id_, "who": who, "what": what, **fields}


def state(now_s: float, models: list[dict], events: list[dict], **server) -> dict:
    known = {"address": "10.0.0.1:7077", "version": "0.1 fake", "epoch": EPOCH, "uptime_s": round(now_s, 3)}
    workers = sum(each["ranks"] for m in models for each in m["replicas"])
    known.update(time=time_text(now_s), workers=workers, recovering=False)
    return {"server": {**known, **server}, "models": models, "events": events}


class Fill(NamedTuple):
    """One update of one rollout. Fills are numbered through all sweeps; the times are those since the fleet's start."""

    index: int
    began_s: float
    duration_s: float

    def share(self, now_s: float) -> float:
        return min(1.0, max(0.0, (now_s - self.began_s) / self.duration_s))


class Fleet:
    """`picture(now_s)` is the state.json of a fleet that started `now_s` seconds ago.

    Fill i is of rollout i modulo the rollouts; the first sweep lies before the start, so that all hold something.
    """

    def __init__(self, replicas: int, fills: int, seed: int) -> None:
        if replicas < 2 or fills < 1:
            raise ValueError("a fleet has at least two replicas, of which one publishes, and one fill")
        self.rollouts = replicas - 1
        self.fills = min(fills, self.rollouts)
        # Between the beginnings of two fills: so that about as many are under way as were asked for.
        self.interval_s = FILL_S / self.fills
        self.seed = seed
        self.sites = ["eu-west", "us-east", "us-west"][: 1 + (replicas > 8) + (replicas > 300)]
        self.racks = max(2, min(8, replicas // 12))

    def draw(self, what: str, number: int) -> random.Random:
        return random.Random("%d %s %d" % (self.seed, what, number))

    # What happens when -------------------------------------------------------------------------

    def fill(self, index: int) -> Fill:
        duration_s = FILL_S * self.draw("fill", index).uniform(0.6, 1.4)
        return Fill(index, (index - self.rollouts) * self.interval_s, duration_s)

    def begun(self, now_s: float) -> int:
        """How many fills have begun."""
        return self.rollouts + int(now_s / self.interval_s)

    def sweep(self, index: int) -> int:
        return index // self.rollouts

    def place(self, rollout: int) -> tuple[str, str]:
        draw = self.draw("place", rollout)
        return draw.choice(self.sites), "rack-%d" % (1 + draw.randrange(self.racks))

    def sources(self, fill: Fill) -> list[list]:
        """Up to two groups of the reader's site that this sweep has reached before; else the trainer."""
        site = self.place(fill.index % self.rollouts)[0]
        first = self.sweep(fill.index) * self.rollouts
        before = range(max(first, fill.index - 3 * self.fills), fill.index - self.fills // 2)
        near = [i for i in before if self.place(i % self.rollouts)[0] == site and not self.is_idle(i % self.rollouts)]
        if not near:
            return [["trainer", RANKS]]
        draw = self.draw("sources", fill.index)
        chosen = draw.sample(near, min(len(near), draw.choice([1, 1, 2])))
        return [[self.group(i % self.rollouts), RANKS // len(chosen)] for i in chosen]

    # What it looks like ------------------------------------------------------------------------

    @staticmethod
    def group(rollout: int) -> str:
        return "rollout-%d" % rollout

    @staticmethod
    def is_idle(rollout: int) -> bool:
        return rollout % 61 == 23

    @staticmethod
    def version(sweep: int) -> tuple[str, str]:
        return "%d.%d" % (EPOCH, sweep + 1), "step-%d" % (sweep + 1)

    @staticmethod
    def event_id(index: int) -> str:
        return "%d-%d" % (EPOCH, 10 + 2 * index)

    def picture(self, now_s: float) -> dict:
        begun = self.begun(now_s)
        newest = self.sweep(begun)
        number, label = self.version(newest)
        trainer = replica(group="trainer", state="published", version=number, label=label, publisher=True)
        trainer.update(site=self.sites[0], rack="rack-1", hosts=["trainer-0", "trainer-1"])
        replicas = [trainer, *(self.rollout(i, begun, now_s) for i in range(self.rollouts))]
        readers = collections.Counter(group for each in replicas for group, _ in each["sources"])
        for each in replicas:
            each["readers"] = readers[each["group"]]
        moved = begun - self.fills
        stall_s = {"resolve": 0.02, "queue": 0.9, "transfer": RANKS * FILL_S, "verify": 0.4, "apply": 1.1, "drain": 0.3}
        the_model = model(
            "r1",
            "qwen3-30b",
            [self.version_row(sweep, newest) for sweep in range(newest, max(-1, newest - MOST_VERSIONS), -1)],
            replicas,
            stall_s={**{phase: seconds * moved for phase, seconds in stall_s.items()}, "failed": 0},
            longest_stalls=[stalled("rollout-%d/0" % i, queue=0.2, transfer=FILL_S * (9 - i)) for i in range(8)],
            received_bytes=WHOLE * moved,
            copies_from_publisher=float(moved),
        )
        return state(now_s, [the_model], self.events(begun, now_s))

    def version_row(self, sweep: int, newest: int) -> dict:
        """The newest two are retained; each fifth is pinned, and lost once nobody holds it."""
        is_pinned, is_old = sweep % 5 == 0, newest - sweep > 1
        fields = {"withdrawn": is_old and sweep % 5 == 1, "lost": is_old and is_pinned, "pins": int(is_pinned)}
        return version(*self.version(sweep), **fields)

    def rollout(self, rollout: int, begun: int, now_s: float) -> dict:
        site, rack = self.place(rollout)
        fixed = {"group": self.group(rollout), "site": site, "rack": rack, "hosts": ["node-%d" % rollout]}
        if self.is_idle(rollout):
            return replica(state="idle", version="", label="", bytes=0, **fixed)
        # The last fill that has begun of those of this rollout.
        fill = self.fill(begun - 1 - (begun - 1 - rollout) % self.rollouts)
        fixed["version"], fixed["label"] = self.version(self.sweep(fill.index))
        share = fill.share(now_s)
        if share < 1.0:
            return replica(
                state="filling",
                held=int(WHOLE * share),
                sources=self.sources(fill),
                transports=["ibverbs"] if site == self.sites[0] else ["tcp"],
                operation="update",
                operation_s=round(now_s - fill.began_s, 3),
                event=self.event_id(fill.index),
                **fixed,
            )
        if rollout % 47 == 11:
            return replica(state="leaving", **fixed)
        # Who comes next drains before it fills.
        return replica(state="draining" if fill.index + self.rollouts < begun + 2 else "complete", **fixed)

    def events(self, begun: int, now_s: float) -> list[dict]:
        """Each fill begins and ends; some give up a source in between."""
        happened = []
        for index in range(max(0, begun - MOST_EVENTS), begun):
            fill = self.fill(index)
            if self.is_idle(index % self.rollouts):
                continue
            id_, group = self.event_id(index), self.group(index % self.rollouts)
            text = "%s (#%s)" % tuple(reversed(self.version(self.sweep(index))))
            if index % self.rollouts == 0:
                happened.append((fill.began_s - 0.01, "published", "%d-%d" % (EPOCH, 9 + 2 * index), "trainer", text))
            happened.append((fill.began_s, "update began", id_, group, "to " + text))
            if index % 9 == 4:
                at_s = fill.began_s + 0.4 * fill.duration_s
                source = self.sources(fill)[0][0]
                happened.append((at_s, "source failed", id_, group, "%s: silent for 1.0 s; left" % source))
                happened.append((at_s + 0.05, "re-routed", id_, group, "to trainer"))
            after = " after %.1fs" % fill.duration_s
            happened.append((fill.began_s + fill.duration_s, "update moved", id_, group, text + after))
        past = sorted(each for each in happened if 0 <= each[0] <= now_s)
        return [event(*each, model="qwen3-30b") for each in past[-MOST_EVENTS:]]


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
                try:
                    self.wfile.write(body)
                except ConnectionError:
                    pass  # the page was closed meanwhile

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
