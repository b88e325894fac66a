"""Whoever is run in a bench: TensorHub in some settings, and the peers, behind one interface.

  for contender in ours + peers:
      sample = contender.run(peer.Shape(...))       # a figures.Sample; peer.Failed or peer.Unavailable
"""
import json

from testing.peers import peer
from testing.peers import processes
from tools.peer_bench import figures

# What ours and the plain probe choose on loopback by themselves, whatever the setting.
OWN_CHOICE = "cubic"
PLAIN = {"tcp": ("plain", "plain send and recv", "blocking, from and into the memory of ours, cubic; in our processes"),
         "same_host": ("plain", "memcpy in our processes", "from shared memory into our readers' memory, one thread a stream")}


class Ours:
    """`th bench transfer`, one measured round a run. Its plain probe, measured in the same processes, comes with it.
    `plain_facts` are those of the probe's row; None: it has none. `keeps_setting`: the network holds it to the setting's
    congestion control, where it would choose another."""

    def __init__(self, th, name, title, flags, note="", plain_facts=None, keeps_setting=False):
        self.th, self.flags, self.plain_facts, self.keeps_setting = th, flags, plain_facts, keeps_setting
        self.facts = facts_of(name, title, note)
        self.plain = None  # the Sample of the plain probe beside the last run

    def runs_in(self, setting):
        """In a setting whose congestion control it chooses anyway one that keeps it would be measured twice."""
        return not self.keeps_setting or setting.congestion != OWN_CHOICE

    def command(self, shape):
        return [self.th, "bench", "transfer", "--json", "--transport", shape.transport, "--bytes", "%dB" % shape.bytes,
                "--readers", str(shape.readers), "--rounds", "1", "--connections", str(shape.streams), *self.flags]

    def run(self, shape):
        try:
            report = json.loads(processes.last_line_of(self.command(shape), None, shape.timeout_seconds()))
            sample, self.plain = samples_of(report)
        except (processes.ProcessError, ValueError, KeyError, IndexError) as error:
            raise peer.Failed(str(error) or type(error).__name__) from error
        return sample


def facts_of(name, title, note):
    return {"name": name, "title": title, "version": "", "note": note, "verified": True}


def samples_of(report):
    """(ours, the plain probe's), of the JSON object of a run with one round. peer.Failed: the bytes were wrong."""
    if not report["verified"]:
        raise peer.Failed("a reader has other bytes than the holder")
    received_gb = report["bytes"] * report["readers"] / 1e9
    ours = figures.Sample(report["last_reader_seconds_of_rounds"][0], report["bytes"],
                          report["holder_cpu_seconds_per_gb"] * received_gb, report["readers_cpu_seconds_per_gb"] * received_gb)
    return ours, figures.Sample(report["baseline_seconds_of_rounds"][0], report["bytes"])


class PeerContender:
    keeps_setting = False  # it has no choice of its own
    plain_facts = None

    def __init__(self, a_peer, home, transport):
        self.peer, self.home = a_peer, home
        self.facts = {"name": a_peer.name, "title": a_peer.title, "version": a_peer.version(home),
                      "note": a_peer.setting.get(transport, ""), "verified": not a_peer.discards}

    def runs_in(self, setting):
        return True

    def run(self, shape):
        run = self.peer.run(self.home, shape)
        return figures.Sample(run.last_reader_seconds, run.bytes, run.holder_cpu_seconds, run.readers_cpu_seconds)


OWN_CONGESTION = {"tcp": "default flags; it chooses cubic on loopback by itself"}


def ours_of(th, transport, tensors):
    """TensorHub as it comes, and without checksums, as the peers are; over TCP also with the congestion control of the
    setting, as the peers have; with `tensors` also that many against one."""
    found = [Ours(th, figures.OURS, "TensorHub", [], OWN_CONGESTION.get(transport, "default flags"), facts_of(*PLAIN[transport])),
             Ours(th, "ours_unchecked", "TensorHub, checksums off", ["--checksum", "off"], "as the peers, who have none")]
    if transport == "tcp":
        found.append(Ours(th, "ours_as_set", "TensorHub, the setting's congestion control", [],
                          "where that is not cubic: the network keeps it from choosing that",
                          facts_of("plain_as_set", "plain send and recv, the setting's congestion control",
                                   "as plain send and recv, held to the setting likewise"), keeps_setting=True))
    for count in [1, tensors] if tensors else []:
        title = "TensorHub, %d tensor%s" % (count, "" if count == 1 else "s")
        found.append(Ours(th, "ours_%d_tensors" % count, title, ["--tensors", str(count)], "each allocated by itself"))
    return found
