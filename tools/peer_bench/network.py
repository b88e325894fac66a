"""The network that a bench runs in: one of its own where that can be had, with loopback alone, whose congestion control
is its own too.

  own = network.enter()                   # from here on this process and its children
  network.set_congestion("cubic")         # what sockets have that choose none
  network.set_congestion("bbr", locked=True)  # what all have, whatever they choose
"""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import socket
import struct
import subprocess

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
MOST_NAME_BYTES = 16
CONGESTION = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
AVAILABLE = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


class NetworkError(Exception):
    """The network is not as it should be; the text says what to do."""


def unshare(flags):
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def enter():
    """Moves this process, which must have one thread, into a network of its own. Returns an empty text, or why it stays
    in the machine's. Whoever is not root becomes root in a user namespace, with its own rights to files."""
    try:
        if os.geteuid() == 0:
            unshare(CLONE_NEWNET)
        else:
            user, group = os.geteuid(), os.getegid()
            unshare(CLONE_NEWUSER | CLONE_NEWNET)
            pathlib.Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            pathlib.Path("/proc/self/uid_map").write_text("0 %d 1" % user, encoding="ascii")
            pathlib.Path("/proc/self/gid_map").write_text("0 %d 1" % group, encoding="ascii")
    except OSError as error:
        return "no network of its own, but the machine's (%s; run it as root)" % error.strerror
    raise_loopback()
    return ""


def congestion():
    return CONGESTION.read_text(encoding="ascii").strip()


def available():
    """The congestion controls that this kernel has. A module that is not loaded does not count."""
    return AVAILABLE.read_text(encoding="ascii").split()


def set_congestion(name, locked=False):
    """For sockets that are opened from here on in this process's network, which has to be one of its own unless the name
    is what it has already. With `locked` sockets that choose another are refused it. A kernel lets a network of one's
    own not choose its default freely, but the routes of its loopback may carry any. Raises NetworkError."""
    if (congestion_of_sockets(), is_locked()) == (name, locked):
        return
    for prefix in ("127.0.0.0/8", "127.0.0.1"):
        command = ["ip", "route", "replace", "local", prefix, "dev", "lo", "table", "local", "scope", "host",
                   "src", "127.0.0.1", "congctl"] + (["lock"] if locked else []) + [name]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise NetworkError("there is no command ip on this machine: apt-get install iproute2") from error
        if ran.returncode != 0:
            raise NetworkError("%s: %s" % (" ".join(command), ran.stderr.strip()))
    if (congestion_of_sockets(), is_locked()) != (name, locked):
        raise NetworkError("the congestion control %s cannot be set; take --congestion default" % name)


@contextlib.contextmanager
def connection():
    """A connection over loopback."""
    with socket.socket() as listener, socket.socket() as connected:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        connected.connect(listener.getsockname())
        yield connected


def congestion_of_sockets():
    """What a connection over loopback really has."""
    with connection() as connected:
        name = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, MOST_NAME_BYTES)
    return name.rstrip(b"\0").decode("ascii")


def is_locked():
    """Whether a connection over loopback is refused another congestion control than it has. Every kernel has reno,
    which any process may choose."""
    with connection() as connected:
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        except PermissionError:
            return True
    return False
