"""Mooncake's transfer engine over TCP: every reader reads the holder's registered memory, without a metadata server."""
from testing.peers import fleet
from testing.peers import peer


class Mooncake(peer.Peer):
    name = "mooncake"
    title = "Mooncake transfer engine"
    package = "mooncake-transfer-engine-non-cuda"
    imports = "mooncake.engine"
    libraries = "libibverbs1 libcurl4"
    setting = {"tcp": "protocol tcp, P2PHANDSHAKE, one request, a lane a stream, slices of 4 MiB"}

    def environment(self, shape):
        return {"MC_FORCE_TCP": "1", "MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "ERROR",
                "MC_TCP_LANES_PER_PEER": str(shape.streams), "MC_TCP_SLICE_SIZE": str(4 << 20)}


class MooncakeWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        from mooncake.engine import TransferEngine  # of this peer's environment
        self.engine = TransferEngine()
        self.expect_zero(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self.expect_zero(self.engine.register_memory(self.memory.address, self.memory.size), "register_memory")
        self.source = contact
        # The engine has chosen the port; its name has to carry it.
        return {"name": "127.0.0.1:%d" % self.engine.get_rpc_port(), "address": self.memory.address}

    def expect_zero(self, status, what):
        if status != 0:
            raise peer.Failed("%s returned %d" % (what, status))

    def transfer(self):
        if not self.is_holder:
            self.expect_zero(self.engine.transfer_sync_read(self.source["name"], self.memory.address,
                                                            self.source["address"], self.memory.size),
                             "transfer_sync_read")


PEER = Mooncake()

if __name__ == "__main__":
    fleet.main(MooncakeWorker)
