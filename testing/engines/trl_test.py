"""tensorhub.adapters.trl: what TRL's AsyncGRPOTrainer asks of a weight transfer, with vLLM's workers at the other end."""
import inspect
import unittest

from fleet import FleetTest, Trained
from vllm_worker import worker_of_fused

from tensorhub.adapters import trl as adapter
from trl.experimental.async_grpo.vllm_client import VLLMClient
from trl.experimental.async_grpo import async_grpo_trainer


class FakeServer(VLLMClient):
    """TRL's client, whose requests reach a worker of this process in the place of HTTP."""

    def __init__(self):
        self.worker, self.said = worker_of_fused(), []

    def wait_for_server_ready(self, *_, **__):
        self.said.append("ready")

    def pause(self, timeout=0):
        self.said.append("pause")

    def resume(self, timeout=0):
        self.said.append("resume")

    def init_weight_transfer_engine(self, init_info, timeout=0):
        self.worker.init_weight_transfer_engine(init_info)

    def start_weight_update(self, timeout=0):
        self.worker.start_weight_update()

    def update_weights(self, update_info, timeout=0):
        self.worker.update_weights(update_info)

    def finish_weight_update(self, timeout=0):
        self.worker.finish_weight_update()


class TrlTest(FleetTest):
    def test_the_second_server_takes_the_weights_from_the_first(self):
        trained, servers = Trained(), [FakeServer(), FakeServer()]
        transfer = adapter.TensorHubWeightTransfer(servers, **self.place)
        transfer.init_weight_transfer()
        for server in servers:
            self.addCleanup(server.worker.shutdown_weight_transfer_engine)
        for _ in range(2):
            trained.step()
            transfer.pause()
            transfer.send_weights(trained.named_parameters())
            transfer.resume()
            for server in servers:
                self.assert_holds(server.worker.model, trained)
        self.assertEqual([server.worker.model.loads for server in servers], [2, 0])
        self.assertEqual(servers[0].said, ["ready", "pause", "resume", "pause", "resume"])
        transfer.destroy()
        transfer.destroy()

    def test_a_trainer_that_was_started_anew_sends_its_own_weights(self):
        server = FakeServer()
        self.addCleanup(server.worker.shutdown_weight_transfer_engine)
        for trained in (Trained(), Trained()):
            transfer = adapter.TensorHubWeightTransfer([server], **self.place)
            transfer.init_weight_transfer()
            transfer.send_weights(trained.named_parameters())
            self.assert_holds(server.worker.model, trained)
            transfer.destroy()

    def test_it_has_what_the_trainer_calls(self):
        protocol = async_grpo_trainer.WeightTransferProtocol
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                self.assertTrue(callable(getattr(adapter.TensorHubWeightTransfer, name, None)), name)


if __name__ == "__main__":
    unittest.main()
