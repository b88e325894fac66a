"""What of libtensorhub.so does not block: operations, receives and controllers, seen by ctypes."""
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import unittest

from th.c_interface.tensorhub_ctypes import (
    ALREADY_THERE, CANCELLED, DEADLINE_EXCEEDED, Error, FAILED_PRECONDITION, INVALID_ARGUMENT, JoinOptions,
    Library, MOVED, NOT_AVAILABLE, NOT_FOUND, OK, Progress, PublishOptions, RESOURCE_EXHAUSTED, ReceiveOptions, ServerTest,
    Slice, StageOptions, UNIMPLEMENTED, UpdateOptions, make, tensor)

LIBRARY, SERVER = sys.argv[1:3]

HOUR = 3600.0  # of calls that only a cancel ends
PATIENCE = 60.0
SLOW_BYTES = 12000000
SLOW = {"uplink_bytes_per_second": 8000000, "transports": b"tcp"}  # one and a half seconds


def array(size, value):
    return (ctypes.c_uint8 * size)(*([value] * min(size, 16)))


def is_readable(fd, timeout=0):
    return bool(select.select([fd], [], [], timeout)[0])


class OperationsTest(ServerTest):
    library = LIBRARY
    server_binary = SERVER

    def setUp(self):
        self.kept = []
        self.clients = []
        self.buffers = []

    def tearDown(self):
        for buffer in self.buffers:
            self.th.lib.th_buffer_free(buffer)
        for client in self.clients:
            self.th.lib.th_client_free(client)

    def worker(self, group, model, size, value, **fields):
        """A buffer of one tensor, and its memory."""
        # One data plane a process: all of its clients have the same options of it.
        options = {**SLOW, "staging_limit_bytes": 64 << 20, "snapshot_limit_bytes": 64 << 20}
        client = self.th.join(self.address, group, model=model, **{**options, **fields})
        memory = array(size, value)
        buffer = self.th.register(client, [tensor(b"w", memory)])
        self.clients.append(client)
        self.buffers.append(buffer)
        self.kept.append(memory)
        return client, buffer, memory

    def publish(self, buffer, label=b"1"):
        self.th.check(self.th.lib.th_publish(buffer, label, None))
        return self.th.text(self.th.lib.th_await_published, buffer)

    def ended(self, operation, status=OK):
        """(outcome, result) of an operation that ends with the status; frees it."""
        th, lib = self.th, self.th.lib
        self.assertEqual(th.await_end(operation), status, th.error())
        self.assertTrue(is_readable(lib.th_operation_fd(operation)))
        outcome, text = ctypes.c_int(), ctypes.c_char_p()
        self.assertEqual(
            lib.th_operation_result(operation, ctypes.byref(outcome), ctypes.byref(text)), status)
        result = json.loads(text.value) if text.value else None
        lib.th_string_free(text)
        lib.th_operation_free(operation)
        return outcome.value, result

    def await_bytes(self, operation):
        """Until an update or stage has received something."""
        progress = make(Progress)
        while progress.bytes_received == 0:
            self.assertEqual(self.th.lib.th_operation_wait(operation, ctypes.c_double(0.02)),
                             DEADLINE_EXCEEDED)
            self.th.check(self.th.lib.th_operation_progress(operation, ctypes.byref(progress)))
        self.assertEqual(progress.bytes_total, SLOW_BYTES)

    def test_every_verb_of_a_buffer_runs_as_an_operation(self):
        th, lib = self.th, self.th.lib
        options = make(JoinOptions, server=self.address, run=b"run", model=b"verbs", group=b"trainer",
                       **SLOW)
        join = th.start(lib.th_join_start, ctypes.byref(options))
        # What the arguments point at may go as soon as the call has begun.
        options.server = options.run = options.model = options.group = None
        self.assertEqual(th.await_end(join), OK, th.error())
        trainer = ctypes.c_void_p(lib.th_operation_take_client(join))
        self.assertIsNone(lib.th_operation_take_client(join))
        self.assertIsNone(lib.th_operation_take_buffer(join))
        lib.th_operation_free(join)
        memory = array(300000, 7)
        register = th.start(lib.th_register_start, trainer, ctypes.byref(tensor(b"w", memory)),
                            ctypes.c_size_t(1), None)
        self.assertEqual(th.await_end(register), OK, th.error())
        buffer = ctypes.c_void_p(lib.th_operation_take_buffer(register))
        lib.th_operation_free(register)
        self.ended(th.start(lib.th_publish_start, buffer, b"1", None))
        _, version = self.ended(th.start(lib.th_await_published_start, buffer))
        self.assertEqual(version["label"], "1")
        self.ended(th.start(lib.th_await_sealed_start, buffer, ctypes.c_double(PATIENCE)))
        _, weights, received = self.worker(b"rollout", b"verbs", 300000, 0)
        outcome, result = self.ended(th.start(lib.th_update_start, weights, b"latest", None))
        self.assertEqual(outcome, MOVED)
        self.assertEqual(result["version"], version)
        self.assertEqual(bytes(received), bytes(memory))
        self.ended(th.start(lib.th_unpublish_start, buffer, None))
        self.ended(th.start(lib.th_rebind_start, buffer, ctypes.byref(tensor(b"w", memory)),
                            ctypes.c_size_t(1)))
        self.ended(th.start(lib.th_buffer_sleep_start, buffer, None))
        self.assertEqual(lib.th_buffer_asleep(buffer), 1)
        self.ended(th.start(lib.th_buffer_wake_start, buffer))
        self.ended(th.start(lib.th_buffer_reset_start, weights), FAILED_PRECONDITION)
        self.ended(th.start(lib.th_leave_start, trainer, ctypes.c_double(2)))
        self.ended(th.start(lib.th_await_ended_start, trainer, ctypes.c_double(PATIENCE)))
        lib.th_buffer_free(buffer)
        lib.th_client_free(trainer)

    def test_a_version_is_staged_and_applied(self):
        th, lib = self.th, self.th.lib
        _, published, memory = self.worker(b"trainer", b"staged", 300000, 7)
        self.publish(published)
        _, weights, received = self.worker(b"rollout", b"staged", 300000, 0)
        outcome = ctypes.c_int()
        result = th.text(lib.th_stage, weights, b"latest", ctypes.byref(make(StageOptions, timeout=60.0)),
                         ctypes.byref(outcome))
        self.assertEqual(outcome.value, MOVED)
        self.assertGreater(result["staged_bytes"], 0)
        self.assertNotEqual(bytes(received), bytes(memory))
        self.assertEqual(th.text(lib.th_staged, weights)["label"], "1")
        self.assertEqual(th.text(lib.th_apply, weights, None)["outcome"], "moved")
        self.assertEqual(bytes(received), bytes(memory))
        self.assertIsNone(th.text(lib.th_staged, weights))
        self.assertEqual(lib.th_apply(weights, None, None), FAILED_PRECONDITION)
        stage = th.start(lib.th_stage_start, weights, b"1", None)
        self.assertEqual(self.ended(stage)[0], ALREADY_THERE)
        self.ended(th.start(lib.th_apply_start, weights, None), FAILED_PRECONDITION)
        th.check(lib.th_discard_staged(weights))
        other = make(UpdateOptions, form=b"fused")
        self.assertEqual(lib.th_update(weights, b"1", ctypes.byref(other), None, None), UNIMPLEMENTED)

    def test_an_update_that_is_cancelled_says_so_and_leaves_the_buffer_as_documented(self):
        th, lib = self.th, self.th.lib
        _, published, _ = self.worker(b"trainer", b"cancelled", SLOW_BYTES, 7)
        self.publish(published)
        _, weights, _ = self.worker(b"rollout", b"cancelled", SLOW_BYTES, 0)
        in_place = make(UpdateOptions, timeout=HOUR, in_place=1)
        update = th.start(lib.th_update_start, weights, b"latest", ctypes.byref(in_place))
        self.assertEqual(lib.th_operation_result(update, None, None), FAILED_PRECONDITION)
        self.await_bytes(update)
        self.assertFalse(is_readable(lib.th_operation_fd(update)))
        th.check(lib.th_operation_cancel(update))
        self.assertTrue(is_readable(lib.th_operation_fd(update), PATIENCE))
        self.assertEqual(lib.th_operation_result(update, None, None), CANCELLED)
        for fields_of in (lib.th_last_error_fields, lambda error: lib.th_operation_error(update, error)):
            error = make(Error)
            self.assertEqual(fields_of(ctypes.byref(error)), OK)
            self.assertEqual((error.code, error.word, error.rank),
                             (CANCELLED, b"UPDATE_FAILED", b"rollout/0"))
            self.assertNotEqual(error.event, b"")
            self.assertIn(b"event=" + error.event, error.text)
        self.assertEqual(lib.th_buffer_undefined(weights), 1)
        lib.th_operation_free(update)
        stage = th.start(lib.th_stage_start, weights, b"latest",
                         ctypes.byref(make(StageOptions, timeout=HOUR)))
        self.await_bytes(stage)
        th.check(lib.th_operation_cancel(stage))
        self.ended(stage, CANCELLED)
        self.assertIsNone(th.text(lib.th_staged, weights))

    def test_what_is_freed_ends_its_operations_first(self):
        th, lib = self.th, self.th.lib
        _, published, _ = self.worker(b"trainer", b"freed", SLOW_BYTES, 7)
        self.publish(published)
        client, weights, _ = self.worker(b"rollout", b"freed", SLOW_BYTES, 0)
        update = th.start(lib.th_update_start, weights, b"latest",
                          ctypes.byref(make(UpdateOptions, timeout=HOUR)))
        wait = th.start(lib.th_wait_for_start, client, b"never", ctypes.c_double(HOUR))
        unread = th.start(lib.th_wait_for_start, client, b"never", ctypes.c_double(HOUR))
        receive = ctypes.c_void_p()
        th.check(lib.th_receive_open(client, b"latest", None, ctypes.byref(receive)))
        part = make(Slice)
        th.check(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)))
        lib.th_buffer_free(self.buffers.pop())
        self.ended(update, CANCELLED)
        self.assertFalse(is_readable(lib.th_operation_fd(wait)))
        lib.th_operation_free(unread)  # cancels it, too
        lib.th_client_free(self.clients.pop())
        self.ended(wait, CANCELLED)
        self.assertEqual(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)),
                         CANCELLED)
        lib.th_receive_close(receive)
        for function in (lib.th_operation_free, lib.th_receive_close, lib.th_controller_free):
            function(None)

    def test_a_receive_is_pulled_slice_by_slice(self):
        th, lib = self.th, self.th.lib
        client = th.join(self.address, b"trainer", model=b"pulled", **SLOW)
        parts = {b"a": array(3000000, 1), b"b": array(70000, 2), b"c": array(5, 3)}
        buffer = th.register(client, [tensor(name, parts[name]) for name in parts], segment_bytes=1 << 20)
        self.clients.append(client)
        self.buffers.append(buffer)
        self.publish(buffer)
        engine = th.join(self.address, b"engine", model=b"pulled", **SLOW)
        self.clients.append(engine)
        names = (ctypes.c_char_p * 2)(b"a", b"[bx]")
        options = make(ReceiveOptions, group=b"trainer", tensors=names, tensors_count=2,
                       limit_bytes=2 << 20)
        receive, part = ctypes.c_void_p(), make(Slice)
        th.check(lib.th_receive_open(engine, b"latest", ctypes.byref(options), ctypes.byref(receive)))
        self.assertEqual(lib.th_receive_result(receive, None, None), FAILED_PRECONDITION)
        got = {}
        while True:
            status = lib.th_receive_next(receive, ctypes.c_double(0), ctypes.byref(part))
            if status == DEADLINE_EXCEEDED:
                self.assertTrue(is_readable(lib.th_receive_fd(receive), PATIENCE))
                status = lib.th_receive_next(receive, ctypes.c_double(0), ctypes.byref(part))
            th.check(status)
            if part.name is None:
                break
            self.assertEqual((part.dtype, part.dimensions, part.shape[0], part.slice_begin[0]),
                             (b"U8", 1, len(parts[part.name]), 0))
            self.assertEqual(part.offset, len(got.get(part.name, b"")))
            got[part.name] = got.get(part.name, b"") + ctypes.string_at(part.data, part.bytes)
        self.assertEqual(got, {name: bytes(parts[name]) for name in (b"a", b"b")})
        outcome, text = ctypes.c_int(), ctypes.c_char_p()
        th.check(lib.th_receive_result(receive, ctypes.byref(outcome), ctypes.byref(text)))
        result = json.loads(text.value)
        lib.th_string_free(text)
        self.assertEqual(outcome.value, MOVED)
        self.assertEqual((result["tensors"], result["bytes"], result["sources"]),
                         (2, 3070000, ["trainer/0"]))
        self.assertLessEqual(result["ring_bytes"], 2 << 20)
        lib.th_receive_close(receive)
        # Nothing there is no error, and a wrong name is one.
        th.check(lib.th_receive_open(engine, b"9", None, ctypes.byref(receive)))
        th.check(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)))
        self.assertIsNone(part.name)
        th.check(lib.th_receive_result(receive, ctypes.byref(outcome), None))
        self.assertEqual(outcome.value, NOT_AVAILABLE)
        lib.th_receive_close(receive)
        names[0] = b"no_such"
        th.check(lib.th_receive_open(engine, b"1", ctypes.byref(options), ctypes.byref(receive)))
        self.assertEqual(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)),
                         NOT_FOUND)
        lib.th_receive_close(receive)

    def test_a_slice_that_was_taken_stays_good_until_it_is_given_back(self):
        th, lib = self.th, self.th.lib
        _, published, memory = self.worker(b"trainer", b"taken", SLOW_BYTES, 7)
        self.publish(published)
        engine, _, _ = self.worker(b"engine", b"taken", 8, 0)
        receive, part = ctypes.c_void_p(), make(Slice)
        options = make(ReceiveOptions, group=b"trainer", timeout=HOUR, limit_bytes=8 << 20)
        th.check(lib.th_receive_open(engine, b"latest", ctypes.byref(options), ctypes.byref(receive)))
        th.check(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)))
        th.check(lib.th_receive_cancel(receive))
        self.assertEqual(ctypes.string_at(part.data, part.bytes), bytes(memory)[:part.bytes])
        self.assertEqual(lib.th_receive_next(receive, ctypes.c_double(PATIENCE), ctypes.byref(part)),
                         CANCELLED)
        self.assertIn("were taken", th.error())
        lib.th_receive_close(receive)

    def test_a_controller_sees_waits_and_pins(self):
        th, lib = self.th, self.th.lib
        connect = th.start(lib.th_controller_connect_start, self.address, b"run", b"watched",
                           ctypes.c_double(PATIENCE))
        self.assertEqual(th.await_end(connect), OK, th.error())
        hub = ctypes.c_void_p(lib.th_operation_take_controller(connect))
        lib.th_operation_free(connect)
        client, published, _ = self.worker(b"trainer", b"watched", 300000, 7)
        wait = th.start(lib.th_controller_wait_for_start, hub, b"1", ctypes.c_double(PATIENCE))
        version = self.publish(published)
        self.assertEqual(self.ended(wait)[1], version)
        self.assertEqual(th.text(lib.th_wait_for, client, b"1", ctypes.c_double(PATIENCE)), version)
        default = ctypes.c_double(0)
        self.assertEqual(th.text(lib.th_resolve, hub, b"latest", default), version)
        _, weights, _ = self.worker(b"rollout", b"watched", 300000, 0)
        groups = (ctypes.c_char_p * 3)(b"trainer", b"rollout", b"absent")
        every = ctypes.c_int32(9)
        applied = th.text(lib.th_wait_applied, hub, b"1", groups, ctypes.c_size_t(3),
                          ctypes.c_double(0.1), ctypes.byref(every))
        self.assertEqual(every.value, 0)
        self.assertEqual(applied["applied"], ["trainer"])
        self.assertEqual(applied["lacking"], [{"group": "rollout", "why": "holds nothing"},
                                              {"group": "absent", "why": "has not joined"}])
        wait = th.start(lib.th_wait_applied_start, hub, b"latest", groups, ctypes.c_size_t(2),
                        ctypes.c_double(HOUR))
        th.check(lib.th_update(weights, b"latest", None, None, None))
        self.assertTrue(self.ended(wait)[1]["all"])
        th.check(lib.th_retain(hub, ctypes.c_uint32(1), None))
        th.check(lib.th_retain(hub, ctypes.c_uint32(0), None))
        self.assertEqual(th.text(lib.th_pin, hub, b"1", b"eval", ctypes.c_double(60), None), version)
        pins = th.text(lib.th_controller_list, hub, default)["models"][0]["versions"][0]["pins"]
        self.assertEqual([pin["owner"] for pin in pins], ["eval"])
        th.check(lib.th_release(hub, b"1", b"eval", None))
        self.assertEqual(lib.th_release(hub, b"1", b"eval", None), NOT_FOUND)
        self.assertEqual(lib.th_forget(hub), FAILED_PRECONDITION)
        info = th.text(lib.th_buffer_info, published)
        shard = th.text(lib.th_find_shard, hub, b"latest", None, b"trainer", ctypes.c_uint32(0), default)
        self.assertEqual(shard, {"reason": "", "layout": info["layout"]})
        layout = th.text(lib.th_get_layout, hub, info["layout"].encode(), default)
        self.assertEqual([(t["name"], t["bytes"]) for t in layout["tensors"]], [("w", 300000)])
        events = th.text(lib.th_events, hub, ctypes.c_uint64(0), None, default)
        kinds = [event["kind"] for event in events["events"]]
        self.assertIn("published", kinds)
        self.assertIn("update moved", kinds)
        later = th.text(lib.th_events, hub, ctypes.c_uint64(events["last"]), None, default)
        self.assertEqual(later["events"], [])
        th.check(lib.th_unpublish(published, None))
        self.publish(published, b"2")
        back = th.text(lib.th_controller_roll_back, hub, b"1", None)
        self.assertEqual(back["sequence"], version["sequence"])
        self.assertTrue(th.text(lib.th_client_info, client)["connected"])
        self.assertRegex(self.metrics(), r'group="trainer",rank="0",verb="publish",outcome="done"} \d')
        lib.th_controller_free(hub)

    def metrics(self):
        text = ctypes.c_char_p()
        self.th.check(self.th.lib.th_metrics(ctypes.byref(text)))
        try:
            return text.value.decode()
        finally:
            self.th.lib.th_string_free(text)

    def test_what_becomes_of_readers_is_kept_for_who_asks(self):
        th, lib = self.th, self.th.lib
        source, published, _ = self.worker(b"trainer", b"readers", 300000, 7, keep_reader_reports=1)
        self.publish(published)
        reader, weights, _ = self.worker(b"rollout", b"readers", 300000, 0)
        th.check(lib.th_update(weights, b"latest", None, None, None))
        th.check(lib.th_unpublish(published, None))  # all readers have let go
        reports = []
        while [report["what"] for report in reports] != ["admitted", "released"]:
            reports += th.text(lib.th_reader_reports, source)["reports"]
        self.assertEqual(reports[1]["bytes_sent"], 300000)
        text = ctypes.c_char_p()
        self.assertEqual(lib.th_reader_reports(reader, ctypes.byref(text)), FAILED_PRECONDITION)

    def test_a_notice_ends_the_membership(self):
        th, lib = self.th, self.th.lib
        client, _, _ = self.worker(b"spot", b"noticed", 8, 0)
        self.assertEqual(lib.th_await_ended(client, ctypes.c_double(0)), DEADLINE_EXCEEDED)
        self.assertEqual(lib.th_preempt(client, ctypes.c_double(-1)), INVALID_ARGUMENT)
        th.check(lib.th_preempt(client, ctypes.c_double(0.1)))
        th.check(lib.th_await_ended(client, ctypes.c_double(PATIENCE)))

    def test_a_snapshot_is_published_as_an_operation(self):
        th, lib = self.th, self.th.lib
        _, published, memory = self.worker(b"trainer", b"copied", 300000, 7)
        self.ended(th.start(lib.th_publish_start, published, b"1",
                            ctypes.byref(make(PublishOptions, snapshot=1))))
        ctypes.memset(memory, 9, 300000)
        self.assertEqual(th.text(lib.th_await_published, published)["snapshot_bytes"], 300000)
        self.assertEqual(th.text(lib.th_buffer_info, published)["snapshot_bytes"], 300000)

    def test_wrong_arguments_begin_nothing(self):
        th, lib = self.th, self.th.lib
        operation = ctypes.c_void_p()
        self.assertEqual(lib.th_update_start(None, b"1", None, ctypes.byref(operation)), INVALID_ARGUMENT)
        self.assertIsNone(operation.value)
        self.assertEqual(lib.th_list_start(self.address, None, None, ctypes.c_double(10), None),
                         INVALID_ARGUMENT)
        for function in (lib.th_operation_cancel, lib.th_receive_cancel):
            self.assertEqual(function(None), INVALID_ARGUMENT)
        self.assertEqual(lib.th_operation_wait(None, ctypes.c_double(1)), INVALID_ARGUMENT)
        self.assertEqual(lib.th_operation_fd(None), -1)
        done = th.start(lib.th_list_start, self.address, None, None, ctypes.c_double(10))
        self.assertEqual(lib.th_operation_wait(done, ctypes.c_double(-1)), INVALID_ARGUMENT)
        self.assertIn("models", self.ended(done)[1])

    def test_a_forked_child_lets_operations_be(self):
        th, lib = self.th, self.th.lib
        client, _, _ = self.worker(b"forker", b"forked", 8, 0)
        wait = th.start(lib.th_await_ended_start, client, ctypes.c_double(HOUR))
        receive = ctypes.c_void_p()
        th.check(lib.th_receive_open(client, b"never", None, ctypes.byref(receive)))
        child = os.fork()
        if child == 0:
            refused = (lib.th_operation_wait(wait, ctypes.c_double(HOUR)),
                       lib.th_operation_cancel(wait), lib.th_receive_cancel(receive))
            lib.th_operation_free(wait)
            lib.th_receive_close(receive)
            lib.th_client_free(client)
            os._exit(0 if refused == (FAILED_PRECONDITION,) * 3 else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(lib.th_operation_wait(wait, ctypes.c_double(0)), DEADLINE_EXCEEDED)
        lib.th_receive_close(receive)
        lib.th_operation_free(wait)

    def test_a_process_has_a_limit_of_operations(self):
        th, lib = self.th, self.th.lib
        client, _, _ = self.worker(b"many", b"limited", 8, 0)
        forever = (client, ctypes.c_double(HOUR))
        operations = [th.start(lib.th_await_ended_start, *forever) for _ in range(256)]
        operation = ctypes.c_void_p()
        self.assertEqual(lib.th_await_ended_start(*forever, ctypes.byref(operation)), RESOURCE_EXHAUSTED)
        self.assertIn("256 operations", th.error())
        self.assertIsNone(operation.value)
        lib.th_operation_free(operations.pop())
        operations.append(th.start(lib.th_await_ended_start, *forever))
        for each in operations:
            lib.th_operation_free(each)

    def test_ctrl_c_is_answered_during_every_kind_of_call(self):
        """Another process waits for a rank that never comes, is interrupted, and says what became of it."""
        _, published, _ = self.worker(b"trainer", b"interrupted", 300000, 7)
        self.publish(published)
        for call in WAITS:
            with self.subTest(call=call):
                child = subprocess.Popen([sys.executable, __file__, LIBRARY, SERVER, call, self.address],
                                         stdout=subprocess.PIPE, text=True,
                                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
                self.assertEqual(child.stdout.readline(), "waiting\n")
                child.send_signal(signal.SIGINT)
                said = child.communicate(timeout=PATIENCE)[0]
                self.assertRegex(said, r"^cancelled after \d+\.\d\d\d s\n$")
                self.assertEqual(child.returncode, 0)
                sys.stderr.write("%s %s" % (call, said))


class Waiting:
    """A rank of two, of which the other never comes, with one call under way."""

    def __init__(self, address, call):
        self.th = Library(LIBRARY)
        lib = self.th.lib
        self.client = self.th.join(address, call.encode(), model=b"interrupted", rank=0, ranks=2,
                                   staging_limit_bytes=64 << 20)
        self.memory = array(300000, 0)
        self.buffer = self.th.register(self.client, [tensor(b"w", self.memory)])
        self.receive = ctypes.c_void_p()
        self.operation = None
        if call == "publish":
            self.th.check(lib.th_publish(self.buffer, b"2", ctypes.byref(make(PublishOptions, timeout=HOUR))))
            self.operation = self.th.start(lib.th_await_published_start, self.buffer)
        elif call == "update":
            self.operation = self.th.start(lib.th_update_start, self.buffer, b"1",
                                           ctypes.byref(make(UpdateOptions, timeout=HOUR)))
        elif call == "stage":
            self.operation = self.th.start(lib.th_stage_start, self.buffer, b"1",
                                           ctypes.byref(make(StageOptions, timeout=HOUR)))
        elif call == "wait":
            self.operation = self.th.start(lib.th_wait_for_start, self.client, b"never",
                                           ctypes.c_double(HOUR))
        else:
            options = make(ReceiveOptions, group=b"trainer", timeout=HOUR)
            self.th.check(lib.th_receive_open(self.client, b"1", ctypes.byref(options),
                                              ctypes.byref(self.receive)))

    def wait(self):
        """The status of its end."""
        lib = self.th.lib
        if self.operation:
            while lib.th_operation_wait(self.operation, ctypes.c_double(0.1)) == DEADLINE_EXCEEDED:
                pass
            return lib.th_operation_result(self.operation, None, None)
        status = DEADLINE_EXCEEDED
        while status in (DEADLINE_EXCEEDED, OK):
            status = lib.th_receive_next(self.receive, ctypes.c_double(0.1), ctypes.byref(make(Slice)))
        return status

    def cancel(self):
        lib = self.th.lib
        self.th.check(lib.th_operation_cancel(self.operation) if self.operation
                      else lib.th_receive_cancel(self.receive))

    def free(self):
        lib = self.th.lib
        lib.th_operation_free(self.operation)
        lib.th_receive_close(self.receive)
        lib.th_buffer_free(self.buffer)
        lib.th_client_free(self.client)


WAITS = ("publish", "update", "stage", "receive", "wait")


def wait_until_interrupted(address, call):
    waiting = Waiting(address, call)
    try:
        print("waiting", flush=True)
        waiting.wait()
    except KeyboardInterrupt:
        interrupted = time.monotonic()
        waiting.cancel()
        if waiting.wait() == CANCELLED:
            print("cancelled after %.3f s" % (time.monotonic() - interrupted), flush=True)
    waiting.free()


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[3] in WAITS:
        wait_until_interrupted(sys.argv[4].encode(), sys.argv[3])
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
