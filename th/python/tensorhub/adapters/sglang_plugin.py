"""SGLang's plug-in, which the wheel registers (SGLang 0.5): every server takes weights under the load format "tensorhub", without a flag.

    engine.update_weights_from_tensor(version_tensor(version), load_format="tensorhub")
"""
from __future__ import annotations

import dataclasses
import sys
from typing import Any, Callable, Optional

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

_LOADER = "tensorhub.adapters.sglang.load"
_TARGET = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.update_weights_from_tensor"


def _update(original: Callable, updater: Any, named_tensors: list, load_format: Optional[str] = None) -> Any:
    if load_format == "tensorhub":
        updater, load_format = dataclasses.replace(updater, custom_weight_loaders=[_LOADER]), _LOADER
    return original(updater, named_tensors, load_format)


def register() -> None:
    if "sglang.srt.managers.scheduler" in sys.modules:  # other processes have no weights, and need not import what has
        HookRegistry.register(_TARGET, _update, HookType.AROUND)
