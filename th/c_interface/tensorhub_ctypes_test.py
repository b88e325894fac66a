"""libtensorhub.so as another language sees it: loaded by ctypes, against a server process."""
import ctypes
import os
import sys
import unittest

try:
    import grpc  # another gRPC in the process, loaded before ours
except ImportError:
    grpc = None

from th.c_interface.tensorhub_ctypes import (
    ALREADY_EXISTS, AttachedTensor, AttachOptions, CANCELLED, FAILED_PRECONDITION, INVALID_ARGUMENT,
    JoinOptions, MOVED, NOT_AVAILABLE, NOT_FOUND, OK, OUT_OF_RANGE, PublishOptions, ServerTest, Tensor,
    UNAVAILABLE, UpdateOptions, make, tensor)

LIBRARY, SERVER = sys.argv[1:3]


# What callers that were compiled against an older header have.
class OldJoinOptions(ctypes.Structure):
    _fields_ = JoinOptions._fields_[:18]


class OldUpdateOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout", ctypes.c_double)]


class TensorhubTest(ServerTest):
    library = LIBRARY
    server_binary = SERVER

    def test_publishes_and_updates(self):
        th, lib = self.th, self.th.lib
        source = (ctypes.c_uint8 * 300000)(*(i % 251 for i in range(300000)))
        target = (ctypes.c_uint8 * 300000)()
        trainer = th.join(self.address, b"trainer")
        rollout = th.join(self.address, b"rollout", location=b"site=a")
        published = th.register(trainer, [tensor(b"w", source)])
        weights = th.register(rollout, [tensor(b"w", target)])
        self.assertEqual(lib.th_buffer_bytes(weights), 300000)

        options = make(PublishOptions, attributes=b'{"step":"57"}')
        th.check(lib.th_publish(published, b"step-57", ctypes.byref(options)))
        version = th.text(lib.th_await_published, published)
        self.assertEqual(version["label"], "step-57")
        th.check(lib.th_await_sealed(published, ctypes.c_double(30)))

        outcome = ctypes.c_int()
        result = th.text(lib.th_update, weights, b"latest", None, ctypes.byref(outcome))
        self.assertEqual(outcome.value, MOVED)
        self.assertEqual(result["version"]["attributes"], {"step": "57"})
        self.assertEqual(result["bytes_received"], 300000)
        self.assertEqual(result["sources"][0]["name"], "trainer/0")
        self.assertEqual(bytes(target), bytes(source))
        self.assertEqual(th.text(lib.th_buffer_version, weights), version)
        self.assertEqual(lib.th_buffer_undefined(weights), 0)

        catalog = th.text(lib.th_list, self.address, b"run", b"model", ctypes.c_double(10))
        groups = {r["group"] for r in catalog["models"][0]["versions"][0]["replicas"]}
        self.assertEqual(groups, {"trainer", "rollout"})

        old = make(OldUpdateOptions, timeout=5.0)
        th.check(lib.th_update(weights, b"step-99", ctypes.byref(old), ctypes.byref(outcome), None))
        self.assertEqual(outcome.value, NOT_AVAILABLE)

        th.check(lib.th_unpublish(published, None))
        moved = (ctypes.c_uint8 * 300000)()
        th.check(lib.th_rebind(published, ctypes.byref(tensor(b"w", moved)), ctypes.c_size_t(1)))

        self.assertEqual(lib.th_buffer_wake(published), FAILED_PRECONDITION)
        th.check(lib.th_buffer_sleep(weights, None))
        self.assertEqual(lib.th_publish(weights, b"2", None), FAILED_PRECONDITION)
        self.assertIn("asleep", th.error())
        ctypes.memset(target, 0xA5, 300000)  # an engine that was away has other bytes there
        th.check(lib.th_buffer_wake(weights))
        self.assertEqual(th.text(lib.th_buffer_version, weights), None)
        ctypes.memset(moved, 0x17, 300000)
        th.check(lib.th_publish(published, b"step-58", None))
        th.text(lib.th_await_published, published)
        th.check(lib.th_update(weights, b"latest", None, ctypes.byref(outcome), None))
        self.assertEqual(bytes(target), bytes(moved))
        for buffer in (published, weights):
            lib.th_buffer_free(buffer)
        for client in (trainer, rollout):
            th.check(lib.th_leave(client, ctypes.c_double(2)))
            self.assertEqual(lib.th_membership(client), CANCELLED)
            lib.th_client_free(client)

    def test_rolls_back(self):
        th, lib = self.th, self.th.lib
        memory = (ctypes.c_uint8 * 8)()
        received = (ctypes.c_uint8 * 8)()
        trainer = th.join(self.address, b"roller", model=b"rolled")
        keeper = th.join(self.address, b"keeper", model=b"rolled")
        published = th.register(trainer, [tensor(b"w", memory)])
        kept = th.register(keeper, [tensor(b"w", received)])
        th.check(lib.th_publish(published, b"step-1", None))
        first = th.text(lib.th_await_published, published)
        th.check(lib.th_update(kept, b"step-1", None, None, None))
        th.check(lib.th_unpublish(published, None))
        th.check(lib.th_publish(published, b"step-2", None))
        th.text(lib.th_await_published, published)
        back = th.text(lib.th_roll_back, trainer, b"step-1", b"once")
        self.assertEqual(back["sequence"], first["sequence"])
        self.assertEqual(th.text(lib.th_roll_back, trainer, b"step-1", b"once"), back)
        self.assertEqual(lib.th_roll_back(trainer, b"step-9", None, None), NOT_FOUND)
        self.assertEqual(lib.th_roll_back(trainer, None, None, None), INVALID_ARGUMENT)
        for buffer in (published, kept):
            lib.th_buffer_free(buffer)
        for client in (trainer, keeper):
            lib.th_client_free(client)

    def test_a_holder_publishes_a_derived_form(self):
        th, lib = self.th, self.th.lib
        source, target, fused, got = ((ctypes.c_uint8 * 8)(*[n] * 8) for n in (1, 0, 3, 0))
        fields = {"model": b"forms"}
        clients = [th.join(self.address, group, **fields) for group in (b"t", b"engine", b"r")]
        hf = th.register(clients[0], [tensor(b"w", source)])
        held = th.register(clients[1], [tensor(b"w", target)])
        derived = th.register(clients[1], [tensor(b"w", fused)], name=b"fused", form=b"fused")
        reader = th.register(clients[2], [tensor(b"w", got)], form=b"fused")
        th.check(lib.th_publish(hf, b"1", None))
        version = th.text(lib.th_await_published, hf)
        th.check(lib.th_update(held, b"1", None, None, None))
        options = make(PublishOptions, derived_from=b"latest")
        self.assertEqual(lib.th_publish(derived, b"1", ctypes.byref(options)), INVALID_ARGUMENT)
        self.assertIn("derived_from", th.error())
        options.derived_from = ("#" + version["sequence"].lstrip("#")).encode()
        th.check(lib.th_publish(derived, b"1", ctypes.byref(options)))
        self.assertEqual(th.text(lib.th_await_published, derived)["sequence"], version["sequence"])
        th.check(lib.th_update(reader, b"1", None, None, None))
        self.assertEqual(bytes(got), bytes(fused))
        for buffer in (hf, held, derived, reader):
            lib.th_buffer_free(buffer)
        for client in clients:
            lib.th_client_free(client)

    def test_an_undefined_buffer_is_left_by_reset(self):
        th, lib = self.th, self.th.lib
        size = 4000000
        source, target, moved = ((ctypes.c_uint8 * size)() for _ in range(3))
        fields = {"model": b"slow", "uplink_bytes_per_second": 2000000, "transports": b"tcp"}
        trainer = th.join(self.address, b"trainer", **fields)
        rollout = th.join(self.address, b"rollout", **fields)
        published = th.register(trainer, [tensor(b"w", source)])
        weights = th.register(rollout, [tensor(b"w", target)])
        self.assertEqual(lib.th_buffer_reset(None), INVALID_ARGUMENT)
        th.check(lib.th_publish(published, b"1", None))
        th.text(lib.th_await_published, published)
        short = make(UpdateOptions, timeout=1.0)
        self.assertNotEqual(lib.th_update(weights, b"1", ctypes.byref(short), None, None), OK)
        self.assertEqual(lib.th_buffer_undefined(weights), 1)
        rebind = (weights, ctypes.byref(tensor(b"w", moved)), ctypes.c_size_t(1))
        self.assertEqual(lib.th_rebind(*rebind), FAILED_PRECONDITION)
        self.assertIn("reset it first", th.error())
        th.check(lib.th_buffer_reset(weights))
        self.assertEqual(lib.th_buffer_undefined(weights), 0)
        th.check(lib.th_rebind(*rebind))
        for buffer in (published, weights):
            lib.th_buffer_free(buffer)
        for client in (trainer, rollout):
            lib.th_client_free(client)

    def publish_snapshot(self, model):
        """A publisher of two tensors of ones and twos; its client, buffer and memory."""
        th = self.th
        trainer = th.join(self.address, b"trainer", model=model, snapshot_limit_bytes=1 << 20)
        memory = [(ctypes.c_uint8 * size)(*[value] * size) for value, size in ((2, 7), (1, 70000))]
        names = [b"b", b"a"]
        buffer = th.register(trainer, [tensor(n, m) for n, m in zip(names, memory)])
        options = make(PublishOptions, snapshot=1)
        th.check(th.lib.th_publish(buffer, b"1", ctypes.byref(options)))
        th.text(th.lib.th_await_published, buffer)
        return trainer, buffer, memory

    def attach(self, client, version=b"latest", **fields):
        """The handle and the result of th_attach."""
        attached = ctypes.c_void_p()
        options = ctypes.byref(make(AttachOptions, **fields)) if fields else None
        result = self.th.text(self.th.lib.th_attach, client, version, options,
                              ctypes.byref(attached))
        return attached, result

    def test_attaches_what_a_holder_of_this_host_has(self):
        th, lib = self.th, self.th.lib
        trainer, published, memory = self.publish_snapshot(b"attached")
        engine = th.join(self.address, b"engine", model=b"attached")
        attached, result = self.attach(engine, group=b"trainer", verify=1)
        self.assertEqual(result["outcome"], "moved")
        self.assertEqual(result["version"]["label"], "1")
        self.assertEqual(result["source"], "trainer/0")
        self.assertEqual((result["tensors"], result["bytes"]), (2, 70007))
        self.assertEqual(lib.th_attached_size(attached), 2)
        at = make(AttachedTensor)
        th.check(lib.th_attached_at(attached, ctypes.c_size_t(0), ctypes.byref(at)))
        self.assertEqual((at.name, at.dtype, at.dimensions, at.shape[0], at.slice_begin[0]),
                         (b"a", b"U8", 1, 70000, 0))
        self.assertEqual(ctypes.string_at(at.data, at.bytes), b"\1" * 70000)
        again, _ = self.attach(engine, layout=result["layout"].encode())
        # The holder goes on, and ends; what is attached stays as it was.
        th.check(lib.th_unpublish(published, None))
        ctypes.memset(memory[1], 9, 70000)
        th.check(lib.th_publish(published, b"2", ctypes.byref(make(PublishOptions, snapshot=1))))
        th.text(lib.th_await_published, published)
        newer, _ = self.attach(engine, b"2")
        th.check(lib.th_attached_find(newer, b"a", ctypes.byref(at)))
        self.assertEqual(ctypes.string_at(at.data, 1), b"\x09")
        lib.th_buffer_free(published)
        for client in (trainer, engine):
            lib.th_client_free(client)
        th.check(lib.th_attached_find(again, b"b", ctypes.byref(at)))
        self.assertEqual(ctypes.string_at(at.data, at.bytes), b"\2" * 7)
        for each in (attached, again, newer):
            th.check(lib.th_attached_verify(each))
            lib.th_attached_free(each)

    def test_says_why_nothing_is_attached(self):
        th, lib = self.th, self.th.lib
        trainer, published, _ = self.publish_snapshot(b"refused")
        engine = th.join(self.address, b"engine", model=b"refused")
        attached, result = self.attach(engine, b"9")
        self.assertIsNone(attached.value)
        self.assertEqual((result["outcome"], result["version"]), ("not_available", None))
        self.assertEqual(result["reason"], "not_published")
        plain = th.join(self.address, b"plain", model=b"refused")
        memory = (ctypes.c_uint8 * 8)()  # no arena
        in_place = th.register(plain, [tensor(b"w", memory)])
        th.check(lib.th_publish(in_place, b"2", None))
        th.text(lib.th_await_published, in_place)
        self.assertEqual(lib.th_attach(engine, b"2", None, ctypes.byref(attached), None),
                         FAILED_PRECONDITION)
        self.assertIn("plain/0: it lies in memory that readers cannot attach", th.error())
        self.assertEqual(lib.th_attach(engine, None, None, ctypes.byref(attached), None),
                         INVALID_ARGUMENT)
        self.assertEqual(lib.th_attach(engine, b"1", None, None, None), INVALID_ARGUMENT)
        bad = make(AttachOptions, layout=b"no digest")
        self.assertEqual(
            lib.th_attach(engine, b"1", ctypes.byref(bad), ctypes.byref(attached), None),
            INVALID_ARGUMENT)
        attached, _ = self.attach(engine, b"1")
        at = make(AttachedTensor)
        self.assertEqual(lib.th_attached_at(attached, ctypes.c_size_t(2), ctypes.byref(at)),
                         OUT_OF_RANGE)
        self.assertEqual(lib.th_attached_find(attached, b"c", ctypes.byref(at)), NOT_FOUND)
        self.assertEqual(
            lib.th_attached_find(attached, b"a", ctypes.byref(AttachedTensor())), INVALID_ARGUMENT)
        self.assertEqual(lib.th_attached_verify(None), INVALID_ARGUMENT)
        self.assertEqual(lib.th_attached_size(None), 0)
        lib.th_attached_free(attached)
        lib.th_attached_free(None)
        for buffer in (published, in_place):
            lib.th_buffer_free(buffer)
        for client in (trainer, engine, plain):
            lib.th_client_free(client)

    def test_errors_are_codes_with_a_text(self):
        th, lib = self.th, self.th.lib
        client = ctypes.c_void_p()
        self.assertEqual(lib.th_join(None, ctypes.byref(client)), INVALID_ARGUMENT)
        self.assertIn("NULL", th.error())
        unset = JoinOptions(server=self.address)
        self.assertEqual(lib.th_join(ctypes.byref(unset), ctypes.byref(client)), INVALID_ARGUMENT)
        self.assertIn("struct_size", th.error())
        nowhere = make(JoinOptions, server=b"127.0.0.1:1", run=b"r", model=b"m", group=b"g",
                       join_timeout=0.2)
        self.assertEqual(lib.th_join(ctypes.byref(nowhere), ctypes.byref(client)), UNAVAILABLE)
        first = th.join(self.address, b"taken")
        second = make(JoinOptions, server=self.address, run=b"run", model=b"model", group=b"taken")
        self.assertEqual(lib.th_join(ctypes.byref(second), ctypes.byref(client)), ALREADY_EXISTS)
        self.assertIn("taken/0", th.error())
        buffer = ctypes.c_void_p()
        bad = make(Tensor, name=b"w", dtype=b"NOT_A_TYPE")
        self.assertEqual(
            lib.th_register(first, ctypes.byref(bad), ctypes.c_size_t(1), None,
                            ctypes.byref(buffer)), INVALID_ARGUMENT)
        memory = (ctypes.c_uint8 * 8)()
        registered = th.register(first, [tensor(b"w", memory)])
        self.assertEqual(lib.th_unpublish(registered, None), FAILED_PRECONDITION)
        self.assertEqual(lib.th_publish(registered, b"", None), INVALID_ARGUMENT)
        self.assertEqual(lib.th_publish(None, b"1", None), INVALID_ARGUMENT)
        lib.th_buffer_free(registered)
        lib.th_client_free(first)
        lib.th_client_free(None)

    def refusal_of(self, **fields):
        """The error of a join with these options."""
        client = ctypes.c_void_p()
        options = make(JoinOptions, server=self.address, run=b"run", model=b"model", group=b"rdma",
                       **fields)
        self.assertNotEqual(self.th.lib.th_join(ctypes.byref(options), ctypes.byref(client)), OK)
        self.assertIsNone(client.value)
        return self.th.error()

    def test_options_of_rdma_reach_the_data_plane(self):
        self.assertIn("option rdma_devices is no_such_0,no_such_1: ",
                      self.refusal_of(rdma_devices=b"no_such_0,no_such_1"))
        self.assertIn("rdma_devices has no effect without ibverbs",
                      self.refusal_of(rdma_devices=b"no_such_0", transports=b"tcp"))
        self.assertIn("rdma_registered_limit_bytes has no effect without ibverbs",
                      self.refusal_of(rdma_registered_limit_bytes=4096, transports=b"tcp"))

    def test_a_caller_without_the_options_of_rdma_has_their_defaults(self):
        th, client = self.th, ctypes.c_void_p()
        fields = {"server": self.address, "run": b"run", "model": b"model"}
        old = make(OldJoinOptions, group=b"old", transports=b"tcp", **fields)
        # What lies behind a caller's struct is none of the library's.
        padded = (ctypes.c_uint8 * ctypes.sizeof(JoinOptions))(*[0xff] * ctypes.sizeof(JoinOptions))
        ctypes.memmove(padded, ctypes.byref(old), ctypes.sizeof(old))
        th.check(th.lib.th_join(ctypes.byref(padded), ctypes.byref(client)))
        th.lib.th_client_free(client)

    def test_has_the_abi_version_of_its_header(self):
        self.assertEqual(self.th.lib.th_abi_version(), 1)

    def test_a_forked_child_is_refused(self):
        th = self.th
        client = th.join(self.address, b"forker")
        child = os.fork()
        if child == 0:
            os._exit(0 if th.lib.th_membership(client) == FAILED_PRECONDITION else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        th.lib.th_client_free(client)

    @unittest.skipIf(grpc is None, "grpcio is not installed")
    def test_lives_beside_another_grpc(self):
        client = self.th.join(self.address, b"beside")
        with grpc.insecure_channel(self.address.decode()) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        self.th.lib.th_client_free(client)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
