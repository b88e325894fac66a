"""NIXL with its UCX backend: every reader READs the holder's registered host memory into its own."""
import time

from testing.peers import fleet
from testing.peers import peer
from testing.peers import ucx

# What the transfer is cut into, and how long a reader sleeps between two looks at it: what was best of a few, each.
DESCRIPTORS = {"tcp": 16, "same_host": 64}
LOOK_SECONDS = {"tcp": 200e-6, "same_host": 0}


class Nixl(peer.Peer):
    name = "nixl"
    title = "NIXL read (UCX)"
    transports = peer.TRANSPORTS
    # It declares torch too, which its Python interface does not import.
    package = "nixl-cu12"
    setting = {"tcp": "UCX_TLS=tcp, segments of 256 KiB, 16 descriptors, 200 us between looks",
               "same_host": "UCX chooses (CMA), 64 descriptors"}

    def environment(self, shape):
        chosen = dict(ucx.variables(shape), NIXL_LOG_LEVEL="ERROR")
        if shape.transport == "same_host":
            del chosen["UCX_TLS"]  # its backend does not open without a network transport beside shared memory
            chosen["UCX_NET_DEVICES"] = "lo"
        return chosen


class NixlWorker(fleet.Worker):
    def open(self, contact):
        super().open(contact)
        from nixl_cu12._api import nixl_agent, nixl_agent_config  # of this peer's environment
        self.agent = nixl_agent("worker-%d" % self.index, nixl_agent_config(backends=["UCX"]))
        whole = [(self.memory.address, self.memory.size, 0, "")]
        self.registered = self.agent.register_memory(self.agent.get_reg_descs(whole, "DRAM"))
        if self.is_holder:
            return {"metadata": self.agent.get_agent_metadata().hex(), "address": self.memory.address}
        self.open_read(contact)
        return {}

    def open_read(self, contact):
        holder = self.agent.add_remote_agent(bytes.fromhex(contact["metadata"]))
        holder = holder.decode() if isinstance(holder, bytes) else holder
        step = -(-self.memory.size // DESCRIPTORS[self.shape.transport])
        parts = [(offset, min(step, self.memory.size - offset)) for offset in range(0, self.memory.size, step)]

        def described(base):
            return self.agent.get_xfer_descs([(base + offset, length, 0) for offset, length in parts], "DRAM")

        self.read = self.agent.initialize_xfer("READ", described(self.memory.address), described(contact["address"]), holder)

    def transfer(self):
        if self.is_holder:
            return  # NIXL's own thread sends
        pause = LOOK_SECONDS[self.shape.transport]
        state = self.agent.transfer(self.read)
        while state == "PROC":
            if pause:
                time.sleep(pause)
            state = self.agent.check_xfer_state(self.read)
        if state != "DONE":
            raise peer.Failed("the transfer ended as %s" % state)


PEER = Nixl()

if __name__ == "__main__":
    fleet.main(NixlWorker)
