"""The package tensorhub against a server process: what users do, what they get wrong, and what they interrupt."""
import array
import asyncio
import ctypes
import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

# Where run.sh or Bazel has put them; before the import, which loads the library.
LIBRARY, SERVER = sys.argv[1:3]
os.environ["TENSORHUB_LIBRARY"] = os.path.abspath(LIBRARY)
os.environ["TENSORHUB_BIN"] = os.path.dirname(os.path.abspath(SERVER))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tensorhub  # noqa: E402

HOUR = 3600.0  # of calls that only an interruption ends
INTERRUPTED_WITHIN = 0.2  # seconds
SLOW = {"uplink_bytes_per_second": "8MB", "transports": ["tcp"]}  # one data plane a process: all clients have the same
LIMITS = {"staging_limit": "64MiB", "snapshot_limit": "64MiB"}


class FakeTensor:
    """As much of a torch tensor as the package looks at, over memory of its own."""
    layout = "torch.strided"

    def __init__(self, size=64, dtype="torch.bfloat16", stride=(1,), device="cpu", address=None):
        self.memory = (ctypes.c_uint8 * (2 * size))()
        self.shape, self.dtype, self._stride = (size,), dtype, stride
        self.device = type("device", (), {"type": device, "__str__": lambda self: device})()
        self.address = ctypes.addressof(self.memory) if address is None else address

    def data_ptr(self):
        return self.address

    def stride(self):
        return self._stride


class HubTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tensorhub.serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.model = self.id().rsplit(".", 1)[-1]
        self.hubs, self.kept = [], []

    def tearDown(self):
        for hub in self.hubs:
            hub.leave()

    def join(self, group="trainer", **options):
        options = {"run": "r", "model": self.model, **SLOW, **LIMITS, **options}
        hub = tensorhub.join(self.server.address, group=group, **options)
        self.hubs.append(hub)
        return hub

    def published(self, size=3000, label=1, group="trainer"):
        """A trainer's weights of one tensor that are published, and their memory."""
        memory = bytearray(os.urandom(16)) * (size // 16)
        weights = self.join(group).register({"w": memory})
        weights.publish(label)
        weights.await_published()
        self.kept.append(weights)  # what nothing refers to is withdrawn
        return weights, memory


class VerbsTest(HubTest):
    def test_publishes_and_updates(self):
        source, target = array.array("f", range(1000)), array.array("f", bytes(4000))
        trainer = self.join().register({"layer.w": source})
        rollout = self.join("rollout").register({"layer.w": target})
        self.assertEqual(rollout.bytes, 4000)
        self.assertIsNone(rollout.version)
        trainer.publish(57, attributes={"reward": "0.7"})
        version = trainer.await_published()
        self.assertEqual((version.label, version.attributes), ("57", {"reward": "0.7"}))
        result = rollout.update("latest")
        self.assertTrue(result.moved and result.available)
        self.assertEqual(result.version, version)
        self.assertEqual(result.bytes_received, 4000)
        self.assertEqual(result.sources[0]["name"], "trainer/0")
        self.assertGreaterEqual(result.stall, 0)
        self.assertEqual(target, source)
        self.assertEqual(rollout.version, version)
        self.assertTrue(rollout.update(version.selector).already_there)
        trainer.unpublish()
        self.assertIsNone(trainer.version)

    def test_a_version_that_is_not_there_is_no_error(self):
        weights = self.join("rollout").register({"w": bytearray(16)})
        result = weights.update("step-99")
        self.assertFalse(result.moved or result.available)
        self.assertEqual(result.reason, "not_published")

    def test_published_takes_the_weights_back_also_after_an_exception(self):
        weights = self.join().register({"w": bytearray(16)})
        with self.assertRaises(KeyError):
            with weights.published(1) as version:
                self.assertEqual(weights.version, version)
                raise KeyError("of the caller's own")
        self.assertIsNone(weights.version)
        with weights.published(2):
            pass

    def test_stages_beside_and_applies(self):
        _, source = self.published()
        target = bytearray(len(source))
        weights = self.join("rollout").register({"w": target})
        self.assertTrue(weights.stage().moved)
        self.assertEqual(weights.staged.label, "1")
        self.assertEqual(target, bytes(len(source)))
        self.assertTrue(weights.apply().moved)
        self.assertEqual(target, source)
        self.assertIsNone(weights.staged)

    def test_a_snapshot_frees_the_weights_at_once(self):
        memory = bytearray(b"a" * 1000)
        weights = self.join().register({"w": memory})
        weights.publish(1, snapshot=True)
        memory[:] = b"b" * 1000
        target = bytearray(1000)
        self.join("rollout").register({"w": target}).update(1)
        self.assertEqual(target, b"a" * 1000)

    def test_receives_tensors_by_pattern(self):
        tensors = {"a.%d" % i: bytearray(bytes([i]) * (100 + i)) for i in range(20)}
        weights = self.join().register({**tensors, "b": bytearray(7)})
        weights.publish(1)
        weights.await_published()
        receive = self.join("engine").receive("latest", names=["a.*"], limit="16MiB", framework="bytes")
        self.assertEqual(dict(receive), tensors)
        self.assertEqual(receive.result["tensors"], 20)

    def test_slices_lie_in_the_librarys_memory(self):
        _, memory = self.published(300000)
        receive = self.join("engine").receive()
        taken = bytearray()
        for piece in receive.slices():
            self.assertEqual((piece.name, piece.dtype, piece.shape, piece.offset), ("w", "U8", (len(memory),), len(taken)))
            taken += piece.data
        self.assertEqual(taken, memory)
        self.assertEqual(receive.result["outcome"], "moved")

    def test_a_controller_waits_for_groups(self):
        _, memory = self.published()
        with tensorhub.connect(self.server.address, run="r", model=self.model) as controller:
            self.assertEqual(controller.resolve().label, "1")
            applied = controller.wait_applied(1, ["trainer", "rollout"], timeout=0.1)
            self.assertFalse(applied)
            self.assertEqual(applied.applied, ["trainer"])
            self.assertIn("rollout", applied.lacking)
            rollout = self.join("rollout").register({"w": bytearray(len(memory))})
            rollout.update()
            self.assertTrue(controller.wait_applied(1, ["trainer", "rollout"]))
            controller.retain(2)
            self.assertEqual(controller.pin(1, "eval", expires_after=60).label, "1")
            controller.release(1, "eval")
            with self.assertRaises(tensorhub.NotFound):
                controller.release(1, "eval")
            self.assertEqual(controller.list()["models"][0]["keep_latest"], 2)
            self.assertTrue(controller.events()["events"])

    def test_twins_for_event_loops(self):
        async def run():
            source, target = bytearray(os.urandom(3000)), bytearray(3000)
            options = {"run": "r", "model": self.model, **SLOW, **LIMITS}
            trainer = await tensorhub.join_async(self.server.address, group="trainer", **options)
            rollout = await tensorhub.join_async(self.server.address, group="rollout", **options)
            self.hubs += [trainer, rollout]
            published, weights = await asyncio.gather(trainer.register_async({"w": source}), rollout.register_async({"w": target}))
            waiting = asyncio.ensure_future(rollout.wait_for_async(1))
            await published.publish_async(1)
            self.assertEqual((await waiting).label, "1")
            self.assertEqual((await published.await_published_async()).label, "1")
            self.assertTrue((await weights.stage_async()).moved)
            self.assertTrue((await weights.apply_async()).moved)
            self.assertEqual(target, source)
            await published.unpublish_async()
            waiting = asyncio.ensure_future(rollout.wait_for_async(2, timeout=HOUR))
            await asyncio.sleep(0)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
        asyncio.run(run())

    def test_the_store_puts_and_gets(self):
        with tensorhub.store.put_state_dict({"a": bytearray(b"12"), "b": bytearray(b"3")}, "key", server=self.server.address):
            code = ("import tensorhub; print(tensorhub.store.get_state_dict('key', server=%r, framework='bytes'))"
                    % self.server.address)
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                 env=dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))).stdout
        self.assertEqual(out.strip(), "{'a': bytearray(b'12'), 'b': bytearray(b'3')}")


class WrongInputTest(HubTest):
    def refused(self, kind, words, values):
        with self.assertRaises(kind) as caught:
            self.join("g%d" % len(self.hubs)).register(values)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_tensors_that_cannot_be_taken_are_named(self):
        self.refused(ValueError, ["'w'", "contiguous"], {"w": FakeTensor(stride=(2,))})
        self.refused(ValueError, ["'w'", "complex64", "BF16"], {"w": FakeTensor(dtype="torch.complex64")})
        self.refused(ValueError, ["'w'", "meta"], {"w": FakeTensor(device="meta")})
        self.refused(ValueError, ["'w'", "read-only"], {"w": b"bytes"})
        self.refused(TypeError, ["'w'", "int"], {"w": 7})
        self.refused(TypeError, ["mapping", "list"], [bytearray(1)])
        self.refused(ValueError, ["no tensor"], {})
        self.refused(TypeError, ["name", "3"], {3: bytearray(1)})
        self.refused(tensorhub.InvalidArgument, ["w", "null"], {"w": FakeTensor(address=0)})

    def test_a_tensor_that_has_moved_is_named_before_a_byte_is_read(self):
        tensor = FakeTensor()
        weights = self.join().register({"w": tensor})
        tensor.address += 64
        for verb in (lambda: weights.publish(1), weights.update, weights.apply):
            with self.assertRaisesRegex(ValueError, "'w' lies elsewhere"):
                verb()
        tensor.address -= 64
        weights.publish(1)

    def test_a_buffer_cannot_be_resized_while_it_is_registered(self):
        memory = bytearray(16)
        weights = self.join().register({"w": memory})
        with self.assertRaises(BufferError):
            memory.extend(b"more")
        weights.unregister()
        del weights
        memory.extend(b"more")

    def test_options_that_cannot_be_meant(self):
        hub = self.join()
        weights = hub.register({"w": bytearray(16)})
        for kind, words, call in (
                (ValueError, "limit.*64MiB", lambda: hub.receive(limit="5")),
                (ValueError, "step is not negative", lambda: weights.publish(-1)),
                (TypeError, "step or a label", lambda: weights.update(1.5)),
                (ValueError, "when_seeding", lambda: weights.update(when_seeding="sometimes")),
                (TypeError, "list of names", lambda: hub.receive(names="a")),
                (ValueError, "TH_RUN", lambda: tensorhub.join(self.server.address, model="m", group="g")),
                (tensorhub.InvalidArgument, "rank", lambda: self.join("other", rank=3, ranks=2)),
                (tensorhub.FailedPrecondition, "", weights.apply)):
            with self.assertRaisesRegex(kind, words):
                call()

    def test_an_address_without_a_server(self):
        with self.assertRaises(tensorhub.Unavailable) as caught:
            tensorhub.join("127.0.0.1:9", run="r", model="m", group="g", timeout=0.3, **SLOW, **LIMITS)
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertEqual(caught.exception.code, "UNAVAILABLE")

    def test_two_processes_as_one_rank(self):
        self.join()
        with self.assertRaises(tensorhub.AlreadyExists) as caught:
            self.join()
        self.assertTrue(caught.exception.code_word)

    def test_errors_carry_their_parts(self):
        weights = self.join("rollout").register({"w": bytearray(16)})
        weights.publish(1)
        weights.await_published()
        with self.assertRaises(tensorhub.FailedPrecondition) as caught:
            weights.publish(2)
        self.assertIn(caught.exception.code_word, str(caught.exception))
        self.assertTrue(caught.exception.code_word)

    def test_what_is_over_says_so(self):
        hub = self.join()
        weights = hub.register({"w": bytearray(16)})
        weights.unregister()
        weights.unregister()
        with self.assertRaisesRegex(tensorhub.FailedPrecondition, "unregistered"):
            weights.publish(1)
        hub.leave()
        hub.leave()
        with self.assertRaisesRegex(tensorhub.FailedPrecondition, "left"):
            hub.register({"w": bytearray(16)})

    def test_a_forked_child_is_refused_and_ends_well(self):
        weights = self.join().register({"w": bytearray(16)})
        child = os.fork()
        if child == 0:
            try:
                weights.publish(1)
            except tensorhub.FailedPrecondition as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        weights.publish(1)

    def test_another_abi_is_refused_at_the_import(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import tensorhub"
            env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
            for path, word in ((os.path.join(folder, "none.so"), "cannot be loaded"), ("libc.so.6", "no libtensorhub.so")):
                env["TENSORHUB_LIBRARY"] = path
                out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
                self.assertIn("ImportError", out.stderr)
                self.assertIn(word, out.stderr)


class InterruptTest(HubTest):
    """Ctrl-C while a call waits: it raises within INTERRUPTED_WITHIN, and leaves what is documented."""

    def interrupted(self, call, is_waiting):
        """Raises KeyboardInterrupt in `call` once is_waiting() is true; the seconds that it took."""
        sent = []

        def interrupt():
            end = time.monotonic() + 30
            while not is_waiting() and time.monotonic() < end:
                select.select([], [], [], 0.01)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = threading.Thread(target=interrupt)
        try:
            with self.assertRaises(KeyboardInterrupt):
                thread.start()
                call()
            took = time.monotonic() - sent[0]
        finally:
            thread.join()
            signal.signal(signal.SIGINT, before)
        self.assertLess(took, INTERRUPTED_WITHIN)

    def begun(self, operation):
        """A predicate that is true once a thread of the library's runs `operation`."""
        def is_begun():
            for task in os.listdir("/proc/self/task"):
                try:
                    with open("/proc/self/task/%s/comm" % task) as file:
                        if file.read().startswith(operation):
                            return True
                except OSError:  # the thread has ended meanwhile
                    pass
            return False
        return is_begun

    def test_an_update_leaves_the_weights_as_they_were_or_undefined(self):
        self.published(12000000)  # a second and a half
        target = bytearray(12000000)
        weights = self.join("rollout").register({"w": target})
        received = []
        self.interrupted(lambda: weights.update(in_place=True, on_progress=lambda done, total: received.append(done)),
                         lambda: received and received[-1] > 0)
        self.assertTrue(weights.undefined)
        self.assertTrue(weights.update(in_place=True).moved)
        self.assertFalse(weights.undefined)

    def test_a_stage_leaves_nothing(self):
        self.published(12000000)
        weights = self.join("rollout").register({"w": bytearray(12000000)})
        received = []
        self.interrupted(lambda: weights.stage(on_progress=lambda done, total: received.append(done)),
                         lambda: received and received[-1] > 0)
        self.assertIsNone(weights.staged)
        self.assertFalse(weights.undefined)

    def test_waiting_for_a_version(self):
        hub = self.join("rollout")
        self.interrupted(lambda: hub.wait_for(99, timeout=HOUR), self.begun("th-call"))

    def test_waiting_for_the_other_ranks_to_publish(self):
        hub = self.join(ranks=2)
        weights = hub.register({"w": bytearray(16)})
        weights.publish(1, timeout=HOUR)
        self.interrupted(weights.await_published, self.begun("th-call"))

    def test_a_receive(self):
        self.published(12000000)
        receive = self.join("engine").receive()
        received = []
        self.interrupted(lambda: received.extend(len(piece.data) for piece in receive.slices()), self.begun("th-receive"))

    def test_an_unpublish_raises_at_once_and_ends_by_itself(self):
        source, _ = self.published(12000000)
        reader = self.join("rollout").register({"w": bytearray(12000000)})
        received = []
        reading = threading.Thread(
            target=lambda: reader.update(on_progress=lambda done, total: received.append(done)))
        reading.start()
        self.interrupted(lambda: (self.wait_until(lambda: received and received[-1] > 0), source.unpublish(drain_timeout=60)),
                         lambda: received and received[-1] > 1000000)
        reading.join()
        end = time.monotonic() + 30
        while source.version is not None and time.monotonic() < end:
            select.select([], [], [], 0.01)
        self.assertIsNone(source.version)

    def wait_until(self, condition):
        end = time.monotonic() + 30
        while not condition() and time.monotonic() < end:
            select.select([], [], [], 0.01)


class LifetimeTest(HubTest):
    def test_what_is_collected_in_any_order_ends_well(self):
        for _ in range(3):
            hub = self.join("g")
            self.hubs.clear()
            weights = hub.register({"w": bytearray(16)})
            cycle = {"hub": hub, "weights": weights}
            cycle["self"] = cycle
            del hub, weights, cycle
            gc.collect()

    def test_updates_leak_neither_memory_nor_descriptors(self):
        trainer, memory = self.published()
        weights = self.join("rollout").register({"w": bytearray(len(memory))})

        def cost():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))

        for _ in range(200):
            weights.update(1)
        resident, descriptors = cost()
        for _ in range(1000):
            weights.update(1)
        after = cost()
        self.assertLess(after[0] - resident, 4 << 20)
        self.assertLessEqual(after[1], descriptors)

    def test_eighteen_thousand_tensors_register_quickly(self):
        memory = array.array("B", bytes(18000 * 8))
        view = memoryview(memory)
        tensors = {"model.layers.%d.w" % i: view[8 * i:8 * i + 8] for i in range(18000)}
        hub = self.join()
        begin = time.monotonic()
        weights = hub.register(tensors)
        took = time.monotonic() - begin
        self.assertEqual(weights.bytes, len(memory))
        print("18,000 tensors registered in %.2f s" % took)
        self.assertLess(took, 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
