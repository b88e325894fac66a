"""tensorhub.adapters.sglang against SGLang's WeightUpdater."""
import os
import sys
import types
import unittest
from unittest import mock

from fleet import FleetTest, Fused, Trained, torch

import tensorhub
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.plugins.hook_registry import HookRegistry
from tensorhub.adapters import sglang as adapter
from tensorhub.adapters import sglang_plugin

LOADER = "tensorhub.adapters.sglang.load"


class SglangTest(FleetTest):
    def setUp(self):
        super().setUp()
        environment = {"TH_" + name.upper(): value for name, value in self.place.items()}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)

    def update(self, model, version, load_format=LOADER):
        """By SGLang's own method, but for the questions to a GPU."""
        updater = weight_updater.WeightUpdater(
            tp_rank=0, device="cpu", gpu_id=0, model_config=None, custom_weight_loaders={LOADER}, get_model=lambda: model,
            update_model_fields=None, recapture_cuda_graph=None, get_model_runner=None)
        device = types.SimpleNamespace(current_device=lambda: "cpu")
        self.addCleanup(adapter.leave, model)
        with mock.patch.object(weight_updater, "monkey_patch_torch_reductions"), \
                mock.patch.object(weight_updater.WeightUpdater, "_assert_weight_cache_inactive"), \
                mock.patch.object(weight_updater, "_unsupported_derived_weight_cache_error", lambda model: None), \
                mock.patch.object(weight_updater, "get_parallel", lambda: types.SimpleNamespace(tp_rank=0)), \
                mock.patch.object(torch, "get_device_module", lambda name: device):
            return updater.update_weights_from_tensor(adapter.version_tensor(version), load_format=load_format)

    def test_the_second_engine_takes_the_first_ones_buffers(self):
        trained, models = Trained(), [Fused(), Fused()]
        weights = self.join("trainer").register(trained)
        for step in (1, 2):
            trained.step()
            weights.publish(step)
            weights.await_published()
            for model in models:
                self.assertEqual(self.update(model, step), (True, "Success"))
                self.assert_holds(model, trained)
            self.assertTrue(adapter.last_loaded(models[0]).by_name)
            self.assertFalse(adapter.last_loaded(models[1]).by_name)
            weights.unpublish(drop_retained=True)
        self.assertEqual([model.loads for model in models], [2, 0])

    def test_the_plug_in_needs_no_flag(self):
        trained, model = Trained(), Fused()
        weights = self.join("trainer").register(trained)
        weights.publish(1)
        weights.await_published()
        with self.assertRaisesRegex(NotImplementedError, "load_format=tensorhub"):
            self.update(model, 1, load_format="tensorhub")
        sglang_plugin.register()
        HookRegistry.apply_hooks()
        with self.assertRaisesRegex(NotImplementedError, "load_format=tensorhub"):
            self.update(model, 1, load_format="tensorhub")  # only SGLang's scheduler has weights
        with mock.patch.dict(sys.modules, {"sglang.srt.managers.scheduler": None}):
            sglang_plugin.register()
        HookRegistry.apply_hooks()
        self.assertEqual(self.update(model, 1, load_format="tensorhub"), (True, "Success"))
        self.assert_holds(model, trained)

    def test_other_tensors_are_refused(self):
        with self.assertRaisesRegex(ValueError, "takes one tensor, 'tensorhub.version'"):
            adapter.load(Fused(), [("q.weight", torch.zeros(2, 4))])

    def test_a_version_that_cannot_be_had_raises(self):
        model = Fused()
        self.addCleanup(adapter.leave, model)
        with mock.patch.object(adapter.EngineWeights, "update", side_effect=tensorhub.DeadlineExceeded("not there")):
            with self.assertRaises(tensorhub.DeadlineExceeded):
                self.update(model, "step-9")
        self.assertEqual(model.loads, 0)


if __name__ == "__main__":
    unittest.main()
