"""All peers. A new one is a module beside this one and a line here."""
from testing.peers import gloo
from testing.peers import iperf3
from testing.peers import memcpy
from testing.peers import mooncake
from testing.peers import nixl
from testing.peers import process_vm_readv
from testing.peers import ray_store
from testing.peers import tensorhub_python
from testing.peers import torchstore
from testing.peers import ucx

# In the order of the tables.
PEERS = (tensorhub_python.PEER, memcpy.PEER, process_vm_readv.PEER, iperf3.PEER, gloo.PEER, ucx.PEER, nixl.PEER, mooncake.PEER,
         ray_store.PEER, torchstore.PEER)


def names():
    return [peer.name for peer in PEERS]


def over(transport, only=None):
    """The peers that can be compared over `transport`, of those named in `only` (None: of all)."""
    return [peer for peer in PEERS if transport in peer.transports and (only is None or peer.name in only)]


def find(name):
    """KeyError: there is none of that name."""
    return {peer.name: peer for peer in PEERS}[name]
