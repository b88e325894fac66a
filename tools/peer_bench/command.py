"""The command line of tools/bench."""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from testing.peers import catalog
from testing.peers import peer
from testing.peers import processes
from tools.peer_bench import contenders
from tools.peer_bench import machine
from tools.peer_bench import network
from tools.peer_bench import report
from tools.peer_bench import run
from tools.peer_bench import schedule

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent.parent
DESCRIPTION = """\
Measures TensorHub beside its peers on this machine, all in turn, with the same bytes, readers, streams and congestion
control, and writes a page with tables and pictures into docs/benchmarks.

Peers are installed below a cache folder, each in an environment of its own, at pinned versions; one that cannot be
installed is named with the reason. The last line on stdout is the result: a table, or with --json one JSON object.
"""
EPILOG = """\
peers: %s.
Over TCP each setting is measured with the machine's own congestion control and with cubic, in a network of the bench's
own (as root, or where users may make namespaces); ours and the plain probe, which choose cubic on loopback by themselves,
are measured held to the setting's, too. An idle machine is needed for figures that count; docs/benchmarks/README.md says how to read them.
Exit status: 0 measured; 1 ours could not be measured; 2 usage; 130 interrupted.
"""
SIZE = re.compile(r"^(\d+)(B|KiB|MiB|GiB)?$")
# A synthetic model has that at least.
FEWEST_BYTES = 16 << 20
SHIFTS = {None: 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
DEFAULT = "default"
PLACES = ("--th", "--out", "--cache")


def byte_size(text):
    found = SIZE.match(text)
    if not found or int(found.group(1)) == 0:
        raise argparse.ArgumentTypeError("%r is no size such as 64MiB or 1GiB" % text)
    return int(found.group(1)) << SHIFTS[found.group(2)]


def numbers_up_to(most):
    def parse(text):
        parts = text.split(",")
        if not all(part.isdigit() and 1 <= int(part) <= most for part in parts):
            raise argparse.ArgumentTypeError("%r is no list of numbers from 1 to %d, such as 1,2,4" % (text, most))
        return list(dict.fromkeys(int(part) for part in parts))
    return parse


def number_up_to(most):
    def parse(text):
        if not text.isdigit() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError("%r is no number from 1 to %d" % (text, most))
        return int(text)
    return parse


def peer_names(text):
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in catalog.names()]
    if unknown:
        raise argparse.ArgumentTypeError("there is no peer %s; there are %s" % (unknown[0], ", ".join(catalog.names())))
    return names


def parser():
    parse = argparse.ArgumentParser(prog="tools/bench", description=DESCRIPTION, epilog=EPILOG % ", ".join(catalog.names()),
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parse.add_argument
    add("--transport", default="tcp", choices=["tcp", "same_host", "same-host"], help="what the bytes move over (%(default)s)")
    add("--bytes", default="1GiB", type=byte_size, help="size of the version (%(default)s)")
    add("--readers", default="1,2,4", type=numbers_up_to(peer.MAX_READERS), help="how many receive at once (%(default)s)")
    add("--rounds", default="5", type=number_up_to(100), help="how often each is measured (%(default)s)")
    add("--streams", default="2", type=number_up_to(4),
        help="connections (TCP) or threads (same_host) of a reader, where that can be chosen (%(default)s)")
    add("--congestion", default="default,cubic", help="congestion controls, for TCP; default is the machine's (%(default)s)")
    add("--tensors", default=0, type=number_up_to(1000000),
        help="measure TensorHub with so many separate tensors and with one, too")
    add("--only", type=peer_names, help="only these peers, with commas between; an empty text: none")
    add("--name", help="the name of the page and its pictures (the transport)")
    add("--out", default=str(ROOT / "docs/benchmarks"), help="the folder that they are written to (docs/benchmarks)")
    add("--cache", default=str(cache_folder()), help="the folder that peers are installed below (%(default)s)")
    add("--th", help="the command th, if it is not to be built")
    add("--json", action="store_true", help="the last line on stdout is a JSON object")
    return parse


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tensorhub-peers"


def built_th(progress):
    """Builds the command th where it is out of date."""
    progress.say("building th")
    if subprocess.run([str(ROOT / "tools/th"), "help"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit("tools/bench: th could not be built; pass one with --th")
    return str(ROOT / "bazel-bin/th/cli/th")


def prepared(peers, home, progress):
    """(the peers that can be had, [{peer, title, reason}] of the others)"""
    found, missing = [], []
    for each in peers:
        try:
            each.prepare(home, progress.say)
            found.append(each)
        except peer.Unavailable as error:
            progress.say("without %s: %s" % (each.name, error))
            missing.append({"peer": each.name, "title": each.title, "reason": str(error)})
    return found, missing


def congestions_of(options):
    """Of sockets in each setting; a single empty one where nothing crosses TCP."""
    if options.transport != "tcp":
        return [""]
    own = network.congestion()
    return list(dict.fromkeys(own if name == DEFAULT else name for name in options.congestion))


def command_line(arguments):
    """How the page says that it was made: without what names places on this machine."""
    kept, skipped = ["tools/bench"], False
    for argument in arguments:
        name = argument.split("=", 1)[0]
        if not skipped and argument != "--json" and name not in PLACES:
            kept.append(argument or "''")
        skipped = argument in PLACES
    return " ".join(kept)


def measure(options, th, progress, arguments):
    """The result's JSON object."""
    about = machine.describe()
    if about["busy"]:
        progress.say("this machine is not idle (load average %.2f on %d cores): take the figures as indicative" %
                     (about["load_average"], about["cores"]))
    peers, missing = prepared(catalog.over(options.transport, options.only), options.cache, progress)
    all_contenders = contenders.ours_of(th, options.transport, options.tensors)
    all_contenders += [contenders.PeerContender(each, options.cache, options.transport) for each in peers]
    congestions = congestions_of(options)
    without = network.enter() if options.transport == "tcp" else ""
    if without:
        congestions = [network.congestion()]  # another one would be the whole machine's
        without += "; only its congestion control was measured, and nobody was held to it"
        all_contenders = [contender for contender in all_contenders if not contender.keeps_setting]
    settings = run.settings_of(options.readers, congestions)
    progress.total = len(list(schedule.rounds(settings, all_contenders, options.rounds)))
    shape = peer.Shape(options.bytes, streams=options.streams, transport=options.transport)
    results = run.run_all(all_contenders, settings, options.rounds, shape, progress)
    return {"name": options.name or options.transport, "command": command_line(arguments), "machine": about,
            "transport": options.transport, "bytes": options.bytes, "rounds": options.rounds, "streams": options.streams,
            "network": without, "missing": missing, "rows": rows(results, settings, all_contenders)}


def rows(results, settings, all_contenders):
    """Ours, the plain probes in our processes, the others; setting by setting."""
    found = []
    for setting in settings:
        there = [contender for contender in all_contenders if contender.runs_in(setting)]
        facts = [contender.facts for contender in there]
        plain = [contender.plain_facts for contender in there if contender.plain_facts]
        ours = [fact for fact in facts if fact["name"].startswith("ours")]
        others = [fact for fact in facts if not fact["name"].startswith("ours")]
        found += [results.row(setting, fact) for fact in ours + plain + others]
    return found


def write(result, folder):
    """The page, its pictures and the figures."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page = report.markdown(result)
    for name, text in {result["name"] + ".md": page, result["name"] + ".json": json.dumps(result, indent=1) + "\n",
                       **report.pictures(result)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return page


def parsed(arguments):
    """The options; a slip ends the process with status 2."""
    parse = parser()
    options = parse.parse_args(arguments)
    options.transport = options.transport.replace("-", "_")
    options.congestion = [name for name in options.congestion.split(",") if name]
    unknown = set(options.congestion) - {DEFAULT} - set(network.available())
    if unknown or not options.congestion:
        parse.error("this kernel has no congestion control %s; there are %s, and %s" %
                    (", ".join(sorted(unknown)) or "''", DEFAULT, ", ".join(network.available())))
    if options.bytes < FEWEST_BYTES:
        parse.error("--bytes has to be at least %d MiB" % (FEWEST_BYTES >> 20))
    if options.th and not os.access(options.th, os.X_OK):
        parse.error("there is no program %s" % options.th)
    return options


def interrupted(*_):
    raise KeyboardInterrupt


def main(arguments):
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, interrupted)
    processes.adopt_orphans()
    progress = run.Progress(0)
    try:
        th = os.path.abspath(options.th) if options.th else built_th(progress)
        result = measure(options, th, progress, arguments)
        page = write(result, options.out)
    except KeyboardInterrupt:
        progress.say("interrupted; nothing was written")
        return 130
    except (network.NetworkError, OSError) as error:
        progress.say(str(error))
        return 1
    print(json.dumps(result) if options.json else page)
    return 0 if any(row["peer"] == "ours" and row["rounds"] for row in result["rows"]) else 1
