"""TensorHub from Python: what the package costs beside `th bench transfer`, which is C++."""
import sys

from testing import waiting
from testing.peers import fleet
from testing.peers import peer

BUILT = peer.ROOT / "bazel-bin" / "th"
TARGETS = "//th/c_interface:libtensorhub.so //th/server:tensorhub_server"
PLACE = {"run": "bench", "model": "python"}


class TensorHubPython(peer.Peer):
    name = "tensorhub_python"
    title = "TensorHub from Python"
    transports = ("tcp", "same_host")
    setting = {transport: "the package `tensorhub`, a holder and readers that are Python processes, a server of the holder's"
               for transport in transports}

    def version(self, home):
        return "this checkout"

    def prepare(self, home, progress):
        for program in ("c_interface/libtensorhub.so", "server/tensorhub_server"):
            if not (BUILT / program).exists():
                raise peer.Unavailable("it is not built here: bazel build %s" % TARGETS)

    def environment(self, shape):
        return {"TENSORHUB_LIBRARY": str(BUILT / "c_interface" / "libtensorhub.so"), "TENSORHUB_BIN": str(BUILT / "server")}


class TensorHubWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        sys.path.insert(0, str(peer.ROOT / "th" / "python"))
        import tensorhub  # of this checkout
        if self.is_holder:
            self.server = tensorhub.serve()
            contact = {"server": self.server.address}
            self.controller = tensorhub.connect(self.server.address, **PLACE)
        hub = tensorhub.join(contact["server"], group="worker-%d" % self.index, transports=[self.shape.transport], **PLACE)
        self.weights = hub.register({"w": self.memory.mapping})
        return contact

    def prepare(self, version):
        self.version = version
        if not self.is_holder:
            return
        if self.weights.version is not None:
            self.weights.unpublish()
        super().prepare(version)
        self.weights.publish(version)
        published = self.weights.await_published()
        waiting.until(lambda: self.is_sealed(published.sequence), "checksums of the version")

    def is_sealed(self, sequence):
        (model,) = self.controller.list()["models"]
        return any(version["sealed"] for version in model["versions"] if version["version"]["sequence"] == sequence)

    def transfer(self):
        if not self.is_holder:
            self.weights.update(self.version)


PEER = TensorHubPython()

if __name__ == "__main__":
    fleet.main(TensorHubWorker)
