"""A vLLM engine starts with weights over TensorHub, in the place of a checkpoint (vLLM 0.33).

    LLM(model, load_format="tensorhub", model_loader_extra_config={"server": "10.0.0.1:7077", "run": "r1", "model": "qwen3-8b"})

`model` is a folder or a name that has the configuration and the tokenizer. Other keys: `version` ("latest"), `timeout` in seconds (600), and
those of TensorHubInitInfo. From another engine of its configuration it takes the buffers as they are; the first one loads by name.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from .vllm_member import Member, TensorHubInitInfo, started


@dataclasses.dataclass
class TensorHubLoadConfig(TensorHubInitInfo):
    version: str = "latest"
    timeout: float = 600


@register_model_loader("tensorhub")
class TensorHubModelLoader(DummyModelLoader):
    """The model is made with values of no meaning; then its buffers are updated, as they are ever after."""

    def __init__(self, load_config: LoadConfig):
        BaseModelLoader.__init__(self, load_config)  # the dummy loader's own refuses any extra configuration
        known = [field.name for field in dataclasses.fields(TensorHubLoadConfig)]
        unknown = set(load_config.model_loader_extra_config) - set(known)
        if unknown:
            raise ValueError("TensorHub's loader has no %r in model_loader_extra_config; it has %s"
                             % (min(unknown), ", ".join(sorted(known))))
        self._info = TensorHubLoadConfig(**load_config.model_loader_extra_config)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        if model_config is not vllm_config.model_config or prefix or model_config.runner_type == "draft":
            raise ValueError("TensorHub's loader has no weights of a draft model: start the engine from a checkpoint, and let its "
                             "weight transfer update it")
        if vllm_config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16"):
            raise ValueError("TensorHub's loader does not know the scales of a KV cache in %s: start the engine from a checkpoint, "
                             "and let its weight transfer update it" % vllm_config.cache_config.cache_dtype)
        model = super().load_model(vllm_config, model_config, prefix)
        member = Member(self._info, vllm_config, model, torch.device(vllm_config.device_config.device), is_new=True)
        try:
            member.update(self._info.version, self._info.timeout)
        except BaseException:
            member.leave()
            raise
        started[model] = member
        return model
