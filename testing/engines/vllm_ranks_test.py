"""Qwen3 from a trainer of several ranks (transformers' model under FSDP2) to engines of several (vLLM's under tensor parallelism)."""
import contextlib
import tempfile
import unittest
from unittest import mock

from fleet import FleetTest, tensorhub, torch
from fsdp_test import shard_fully, trainer
from ranks import Ranks, copies
from transformers import Qwen3Config, Qwen3ForCausalLM

TRAINER_RANKS = ENGINE_RANKS = 2
ABSENT = "absent"
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
    """The tensors that vLLM's `rank` is to hold, by vLLM's names: q, k, v and gate, up are one each."""
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
    """Starts with the latest weights. None asks how it came to what it has, another request is the version to update to.

    Answers: whether it was loaded by name, from whom, and the weights; to ABSENT what versions it asked for at its start.
    """
    from vllm_worker import WEIGHT_TRANSFER, FakeWorker
    from vllm.config import DeviceConfig, LoadConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model
    source = {**place, "source_group": "trainer", "source_ranks": TRAINER_RANKS}
    with tempfile.TemporaryDirectory() as folder:
        MODEL.save_pretrained(folder)
        config = VllmConfig(model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32"),
                            load_config=LoadConfig(load_format="tensorhub", model_loader_extra_config=source),
                            device_config=DeviceConfig("cpu"), parallel_config=ParallelConfig(tensor_parallel_size=ranks),
                            weight_transfer_config=WEIGHT_TRANSFER)
    config.parallel_config.rank = rank
    with set_current_vllm_config(config):
        init_distributed_environment(ranks, rank, "env://", rank, backend="gloo")
        initialize_model_parallel(ranks, backend="gloo")
        asked, await_form = [], tensorhub.Hub.await_form
        with mock.patch.object(torch.accelerator, "empty_cache"), \
                mock.patch.object(tensorhub.Hub, "await_form", lambda hub, *given: asked.append(given[0]) or await_form(hub, *given)):
            # There is no accelerator; and what each rank asks for is looked at.
            worker = FakeWorker(config, get_model(vllm_config=config))
        worker.init_weight_transfer_engine(source)

        def answer(version):
            if version == ABSENT:
                worker.start_weight_update()
                try:
                    worker.update_weights({"version": version, "timeout": 0.5})
                except tensorhub.DeadlineExceeded:
                    return asked
            if version is not None:
                worker.start_weight_update()
                worker.update_weights({"version": version})
                worker.finish_weight_update()
            last = worker.weight_transfer_engine.last
            return last.by_name, last.sources, copies(worker.model.named_parameters())

        yield answer
        worker.shutdown_weight_transfer_engine()


class VllmRanksTest(FleetTest):
    def world(self, *arguments):
        world = Ranks(*arguments)
        self.addCleanup(world.stop)
        return world

    def check(self, answers, wholes):
        """Each rank has its part of `wholes`. Whether it was by name, by rank."""
        for rank, (by_name, sources, held) in enumerate(answers):
            expected = part_of(wholes, rank)
            self.assertEqual(set(held), set(expected))
            for name, value in held.items():
                self.assertTrue(torch.equal(value, expected[name]), (rank, name, value, expected[name]))
            # Sources are "trainer/0" or "vllm-3f2a-0/0"; what counts is of which kind they are.
            self.assertEqual({source.split("-")[0].split("/")[0] for source in sources}, {"trainer" if by_name else "vllm"})
        return [by_name for by_name, *_ in answers]

    def test_one_engine_loads_by_name_and_the_other_copies_from_it_rank_by_rank(self):
        training = self.world(trainer, TRAINER_RANKS, self.place, shard_fully, Trained)
        wholes, *_ = training.ask(1)
        engines = [self.world(engine, ENGINE_RANKS, self.place) for _ in range(2)]
        started = [self.check(world.ask(None), wholes) for world in engines]
        self.assertEqual([sorted(ranks) for ranks in zip(*started)], [[False, True]] * ENGINE_RANKS)
        for world in engines:
            asked, *others = world.ask(ABSENT)
            self.assertTrue(asked[0].startswith("#"), "each rank finds the latest version by itself")
            self.assertEqual({each for rank in [asked] + others for each in rank}, {asked[0]})
        wholes, *_ = training.ask(2)
        self.assertEqual([self.check(world.ask("2"), wholes) for world in engines], [[True] * ENGINE_RANKS, [False] * ENGINE_RANKS])


if __name__ == "__main__":
    unittest.main()
