"""The course of a bench: every contender once a round in every setting, alternating, and what it comes to."""
import dataclasses
import sys
import time

from testing.peers import peer
from tools.peer_bench import figures
from tools.peer_bench import network
from tools.peer_bench import schedule

# After so many failures in one setting a contender is not run there again.
MOST_FAILURES = 2


@dataclasses.dataclass
class Results:
    """What the runs came to. `samples` are by (setting, name of the contender), and in them by round."""
    samples: dict = dataclasses.field(default_factory=dict)
    failures: dict = dataclasses.field(default_factory=dict)

    def add(self, setting, name, number, sample):
        self.samples.setdefault((setting, name), {})[number] = sample

    def fail(self, setting, name, text):
        self.failures.setdefault((setting, name), []).append(text)

    def has_given_up(self, setting, name):
        return len(self.failures.get((setting, name), [])) >= MOST_FAILURES

    def beside_ours(self, setting, name):
        """The samples of a contender, each with ours of the same round."""
        ours = self.samples.get((setting, figures.OURS), {})
        found = []
        for number, sample in sorted(self.samples.get((setting, name), {}).items()):
            if number in ours:
                sample = dataclasses.replace(sample, ours_seconds=ours[number].seconds, ours_bytes=ours[number].bytes)
            found.append(sample)
        return found

    def row(self, setting, facts):
        key = (setting, facts["name"])
        return figures.row(setting, facts, self.beside_ours(*key), self.failures.get(key, []))


class Progress:
    """Lines on stderr: what has been run, and about how long the rest takes."""

    def __init__(self, total):
        self.total, self.done, self.begin = total, 0, time.monotonic()

    def say(self, text):
        print("tools/bench: %s" % text, file=sys.stderr, flush=True)

    def ran(self, number, setting, title, outcome):
        self.done += 1
        left = (time.monotonic() - self.begin) / self.done * (self.total - self.done)
        self.say("round %d, %s: %s %s (%d of %d, about %d s left)" %
                 (number + 1, setting.title(), title, outcome, self.done, self.total, left))


def settings_of(readers, congestions):
    return [figures.Setting(count, congestion) for congestion in congestions for count in readers]


def run_all(contenders, settings, count, shape, progress):
    """Runs everything: Results. `shape` says what is alike in all settings."""
    results = Results()
    for number, setting, contender in schedule.rounds(settings, contenders, count):
        name, title = contender.facts["name"], contender.facts["title"]
        if results.has_given_up(setting, name):
            progress.ran(number, setting, title, "is left out: it failed %d times" % MOST_FAILURES)
            continue
        if setting.congestion:
            network.set_congestion(setting.congestion, locked=contender.keeps_setting)
        try:
            sample = contender.run(dataclasses.replace(shape, readers=setting.readers, congestion=setting.congestion))
        except (peer.Failed, peer.Unavailable) as error:
            results.fail(setting, name, str(error))
            progress.ran(number, setting, title, "failed: %s" % error)
            continue
        results.add(setting, name, number, sample)
        if contender.plain_facts:
            results.add(setting, contender.plain_facts["name"], number, contender.plain)
        progress.ran(number, setting, title, "%.3f s" % sample.seconds)
    return results
