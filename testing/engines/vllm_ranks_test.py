"""Qwen3 from a trainer of several ranks (transformers' model under FSDP2) to engines of several (vLLM's under tensor parallelism)."""
import contextlib
import tempfile
import unittest

from fleet import FleetTest, torch
from fsdp_test import shards, trainer
from ranks import Ranks, copies
from transformers import Qwen3Config, Qwen3ForCausalLM

TRAINER_RANKS = ENGINE_RANKS = 2
TOKENS = torch.arange(12).reshape(2, 6)
MODEL = Qwen3Config(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=4, tie_word_embeddings=True, architectures=["Qwen3ForCausalLM"],
                    dtype="float32")


class Trained(Qwen3ForCausalLM):
    def __init__(self):
        super().__init__(MODEL)

    def loss(self):
        return self(input_ids=TOKENS, labels=TOKENS).loss


def part_of(wholes, rank):
    """What vLLM's rank has of the trainer's tensors, by vLLM's names."""
    parts, layers = {}, {}

    def rows(name):
        return wholes[name].chunk(ENGINE_RANKS)[rank]

    def columns(name):
        return wholes[name].chunk(ENGINE_RANKS, dim=1)[rank]

    parts["model.embed_tokens.weight"] = rows("model.embed_tokens.weight")
    for name in wholes:
        if name.endswith("norm.weight"):
            parts[name] = wholes[name]
    for layer in range(MODEL.num_hidden_layers):
        attention, mlp = "model.layers.%d.self_attn." % layer, "model.layers.%d.mlp." % layer
        parts[attention + "qkv_proj.weight"] = torch.cat([rows(attention + each + "_proj.weight") for each in "qkv"])
        parts[attention + "o_proj.weight"] = columns(attention + "o_proj.weight")
        parts[mlp + "gate_up_proj.weight"] = torch.cat([rows(mlp + each + "_proj.weight") for each in ("gate", "up")])
        parts[mlp + "down_proj.weight"] = columns(mlp + "down_proj.weight")
    return parts


@contextlib.contextmanager
def engine(rank, ranks, place):
    """Updates to the version that is asked for. Answers whether that was by name, from whom, and with the weights."""
    from vllm_worker import WEIGHT_TRANSFER, FakeWorker
    from vllm.config import DeviceConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader.utils import initialize_model
    with tempfile.TemporaryDirectory() as folder:
        MODEL.save_pretrained(folder)
        config = VllmConfig(model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32"),
                            device_config=DeviceConfig("cpu"), parallel_config=ParallelConfig(tensor_parallel_size=ranks),
                            weight_transfer_config=WEIGHT_TRANSFER)
    config.parallel_config.rank = rank
    with set_current_vllm_config(config):
        init_distributed_environment(ranks, rank, "env://", rank, backend="gloo")
        initialize_model_parallel(ranks, backend="gloo")
        worker = FakeWorker(config, initialize_model(vllm_config=config))
        worker.init_weight_transfer_engine({**place, "source_group": "trainer", "source_ranks": TRAINER_RANKS})

        def update(version):
            worker.start_weight_update()
            worker.update_weights({"version": version})
            worker.finish_weight_update()
            last = worker.weight_transfer_engine.last
            return last.by_name, last.sources, copies(worker.model.named_parameters())

        yield update
        worker.shutdown_weight_transfer_engine()


class VllmRanksTest(FleetTest):
    def test_each_rank_of_an_engine_gets_its_part_from_the_trainer_or_from_its_like(self):
        worlds = [Ranks(trainer, TRAINER_RANKS, self.place, shards, Trained),
                  *(Ranks(engine, ENGINE_RANKS, self.place) for _ in range(2))]
        for world in worlds:
            self.addCleanup(world.stop)
        training, *engines = worlds
        for step in (1, 2):
            wholes, *_ = training.ask(step)
            for i, world in enumerate(engines):
                for rank, (by_name, sources, held) in enumerate(world.ask(str(step))):
                    self.assertEqual(by_name, i == 0, (step, rank))
                    expected = part_of(wholes, rank)
                    self.assertEqual(set(held), set(expected))
                    for name, value in held.items():
                        self.assertTrue(torch.equal(value, expected[name]), (step, i, rank, name))
                    kinds = {source.split("-")[0].split("/")[0] for source in sources}
                    self.assertEqual(kinds, {"trainer"} if by_name else {"vllm"})


if __name__ == "__main__":
    unittest.main()
