"""iperf3: what a known program gets out of TCP when the readers throw the bytes away.

One server a reader and one client a server: the client is the holder's side, as the bytes flow that way. A client is
done when its kernel has taken the last byte, so some are under way then; the seconds are those that all bytes take at
the rate of the slowest receiver until then. Processor time is of the whole processes, which do hardly anything else.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys

from testing.peers import fleet
from testing.peers import peer

VERSION = re.compile(r"^iperf (\S+)")


class Iperf3(peer.Peer):
    name = "iperf3"
    title = "iperf3"
    memory = (0, 0)
    discards = True
    setting = {"tcp": "one server a reader, calls of 1 MiB; bytes are thrown away, and nothing is warmed up"}

    def version(self, home):
        said = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=False).stdout
        found = VERSION.match(said)
        return found.group(1) if found else "unknown"

    def prepare(self, home, progress):
        if shutil.which("iperf3") is None:
            raise peer.Unavailable("there is no iperf3 on this machine: install it as root with apt-get install iperf3")


def client_command(shape, port):
    command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-n", str(shape.bytes), "-P", str(shape.streams), "-l", "1M",
               "--json"]
    return command + (["-C", shape.congestion] if shape.congestion else [])


def received(report, shape):
    """The seconds that all bytes take, of the JSON that a client prints. peer.Failed: it failed or received nothing."""
    try:
        answer = json.loads(report)
        if "error" in answer:
            raise peer.Failed("iperf3: %s" % answer["error"])
        total = answer["end"]["sum_received"]
        seconds, size = float(total["seconds"]), int(total["bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise peer.Failed("iperf3 did not say what it received") from error
    if size <= 0:
        raise peer.Failed("iperf3 received nothing")
    return seconds * shape.bytes / size


def unused_port():
    """iperf3 cannot choose a port itself; nobody else is likely to take this one in between."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start_server(port):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port), "--forceflush"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        if "listening" in line:
            return server
    raise peer.Failed("iperf3 did not listen on port %d" % port)


def cpu_seconds_of(process):
    """Waits for its end."""
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measure(shape):
    ports = [unused_port() for _ in range(shape.readers)]
    servers = [start_server(port) for port in ports]
    clients = [subprocess.Popen(client_command(shape, port), stdout=subprocess.PIPE, text=True) for port in ports]
    reports, holder, readers = [], 0.0, 0.0
    for client in clients:
        reports.append(client.stdout.read())
        holder += cpu_seconds_of(client)
    for server in servers:
        readers += cpu_seconds_of(server)
    return peer.Run(last_reader_seconds=max(received(report, shape) for report in reports), holder_cpu_seconds=holder,
                    readers_cpu_seconds=readers, bytes=shape.bytes, verified=False)


PEER = Iperf3()

if __name__ == "__main__":
    shape_of_run = peer.Shape.from_json(sys.argv[1])
    fleet.report(fleet.keep_stdout(), lambda: measure(shape_of_run))
