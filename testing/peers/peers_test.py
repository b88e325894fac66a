"""Tests what of the peers needs no installation: their interface, content, processes, environments, and parsers."""
import ctypes
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

from testing.peers import catalog
from testing.peers import content
from testing.peers import environment
from testing.peers import fleet
from testing.peers import host_memory
from testing.peers import iperf3
from testing.peers import memcpy
from testing.peers import peer
from testing.peers import processes
from testing.peers import ucx

STAT = "%d (a (strange) name) S %d 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 100 0 0"


class ShapeTest(unittest.TestCase):
    def test_survives_json(self):
        shape = peer.Shape(bytes=7, readers=3, streams=1, transport="same_host")
        self.assertEqual(peer.Shape.from_json(shape.to_json()), shape)

    def test_refuses_what_cannot_be_run(self):
        for fields in ({"bytes": 0}, {"bytes": 1, "readers": 0}, {"bytes": 1, "readers": 65}, {"bytes": 1, "streams": 0},
                       {"bytes": 1, "transport": "pigeon"}):
            with self.subTest(fields), self.assertRaises(ValueError):
                peer.Shape(**fields)

    def test_more_bytes_may_take_longer(self):
        self.assertGreater(peer.Shape(bytes=1 << 30, readers=4).timeout_seconds(), peer.Shape(bytes=1).timeout_seconds() + 60)


class RunTest(unittest.TestCase):
    def test_survives_json(self):
        run = peer.Run(0.5, 0.1, 0.2, 1000, verified=False)
        self.assertEqual(peer.Run.from_json(run.to_json()), run)

    def test_refuses_other_lines(self):
        for text in ("", "[]", "{}", "INFO started", '{"last_reader_seconds": 1}'):
            with self.subTest(text), self.assertRaises(ValueError):
                peer.Run.from_json(text)


class CatalogTest(unittest.TestCase):
    def test_names_are_unique_and_found(self):
        self.assertEqual(len(set(catalog.names())), len(catalog.PEERS))
        self.assertIs(catalog.find("memcpy"), memcpy.PEER)
        with self.assertRaises(KeyError):
            catalog.find("nobody")

    def test_a_transport_has_its_own_peers(self):
        tcp = [each.name for each in catalog.over("tcp")]
        same_host = [each.name for each in catalog.over("same_host")]
        self.assertIn("gloo", tcp)
        self.assertNotIn("gloo", same_host)
        self.assertIn("memcpy", same_host)
        self.assertIn("ucx", tcp)
        self.assertIn("ucx", same_host)
        self.assertEqual([each.name for each in catalog.over("tcp", ["ucx", "memcpy"])], ["ucx"])

    def test_what_is_installed_is_pinned_and_set_up_for_each_transport(self):
        for each in catalog.PEERS:
            with self.subTest(each.name):
                self.assertTrue(each.title)
                self.assertEqual(set(each.setting), set(each.transports))
                if each.package:
                    self.assertRegex(each.version("/"), r"^\d+\.\d+")
                    for line in each.requirements().read_text(encoding="ascii").splitlines():
                        self.assertRegex(line, r"^[\w-]+==\d[\w.]*$")
                for transport in each.transports:
                    each.environment(peer.Shape(1, transport=transport))


class PeerRunTest(unittest.TestCase):
    class Large(peer.Peer):
        memory = (1 << 30, 0)

    class Limited(peer.Peer):
        most_bytes = 10

    def test_needs_memory(self):
        with self.assertRaisesRegex(peer.Unavailable, "memory"):
            self.Large().run("/nowhere", peer.Shape(1 << 30))

    def test_bytes_are_cut_to_the_limit(self):
        self.assertEqual(self.Limited().bytes_of(peer.Shape(100)), 10)
        self.assertEqual(self.Limited().bytes_of(peer.Shape(9)), 9)
        self.assertEqual(peer.Peer().bytes_of(peer.Shape(100)), 100)


class ContentTest(unittest.TestCase):
    SIZE = 2 * content.BLOCK_BYTES + 5

    def test_every_byte_is_compared(self):
        memory = bytearray(self.SIZE)
        content.fill(memory, 1)
        self.assertTrue(content.matches(memory, 1))
        for place in (0, content.BLOCK_BYTES - 1, content.BLOCK_BYTES, self.SIZE - 1):
            memory[place] ^= 1
            self.assertFalse(content.matches(memory, 1), place)
            memory[place] ^= 1

    def test_versions_and_blocks_differ(self):
        memory = bytearray(self.SIZE)
        content.fill(memory, 1)
        self.assertFalse(content.matches(memory, 2))
        self.assertNotEqual(memory[:content.BLOCK_BYTES], memory[content.BLOCK_BYTES:2 * content.BLOCK_BYTES])

    def test_bears_few_bytes(self):
        memory = bytearray(3)
        content.fill(memory, 1)
        self.assertTrue(content.matches(memory, 1))


class HostMemoryTest(unittest.TestCase):
    def test_is_zeroed_and_lies_where_it_says(self):
        memory = host_memory.HostMemory(10000)
        self.assertEqual(bytes(memory.view), bytes(10000))
        ctypes.memset(memory.address + 9999, 7, 1)
        self.assertEqual(memory.view[9999], 7)

    def test_a_file_is_shared(self):
        fd = os.memfd_create("test")
        os.ftruncate(fd, 5000)
        first, second = host_memory.HostMemory(5000, fd), host_memory.HostMemory(5000, fd)
        first.view[4999] = 9
        self.assertEqual(second.view[4999], 9)

    def test_threads_share_all_bytes_at_page_bounds(self):
        page = host_memory.PAGE_BYTES
        self.assertEqual(host_memory.in_threads(10 * page + 1, 2), [(0, 5 * page), (5 * page, 10 * page + 1)])
        self.assertEqual(host_memory.in_threads(5, 4), [(0, 5)])
        for size, threads in ((1, 1), (page, 3), (7 * page + 3, 4), (100 * page, 64)):
            parts = host_memory.in_threads(size, threads)
            self.assertEqual([parts[0][0], parts[-1][1]], [0, size])
            self.assertEqual([end for _, end in parts[:-1]], [begin for begin, _ in parts[1:]])

    def test_evicts_twice_the_cache_within_bounds(self):
        self.assertEqual(host_memory.evicted_bytes("65536K\n"), 128 << 20)
        self.assertEqual(host_memory.evicted_bytes("1024K"), host_memory.FEWEST_EVICTED_BYTES)
        self.assertEqual(host_memory.evicted_bytes("9999999K"), host_memory.MOST_EVICTED_BYTES)


class ThreadsTest(unittest.TestCase):
    def test_copies_everything(self):
        source, target = host_memory.HostMemory(100_000), host_memory.HostMemory(100_000)
        content.fill(source.view, 3)
        memcpy.in_threads(peer.Shape(100_000, streams=3), lambda begin, end: ctypes.memmove(
            target.address + begin, source.address + begin, end - begin))
        self.assertTrue(content.matches(target.view, 3))

    def test_passes_on_what_a_thread_raises(self):
        def fail(begin, end):
            raise OSError(1, "no")
        with self.assertRaises(OSError):
            memcpy.in_threads(peer.Shape(10), fail)


class ProcessTreeTest(unittest.TestCase):
    def test_reads_parents_of_any_name(self):
        self.assertEqual(processes.parents([STAT % (10, 1), STAT % (11, 10), "nonsense"]), {10: 1, 11: 10})

    def test_descendants_are_all_below_and_no_others(self):
        self.assertEqual(processes.descendants_among({10: 1, 11: 10, 12: 11, 20: 1, 13: 10}, 10), [11, 13, 12])
        self.assertEqual(processes.descendants_among({10: 1}, 10), [])

    def test_processor_time_is_of_user_and_kernel(self):
        self.assertEqual(processes.cpu_seconds_in(STAT % (10, 1), 100), 2.0)

    def test_reads_the_memory_that_is_free(self):
        self.assertEqual(processes.available_memory_in("MemTotal: 9 kB\nMemAvailable:   2 kB\n"), 2048)
        self.assertIsNone(processes.available_memory_in("MemTotal: 9 kB\n"))


class LastLineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        processes.adopt_orphans()

    def last_line(self, code, timeout=60):
        return processes.last_line_of([sys.executable, "-c", code], None, timeout)

    def test_is_the_last_line(self):
        self.assertEqual(self.last_line("print('chatter'); print('answer')"), "answer")

    def test_tells_the_error_that_the_process_reports(self):
        with self.assertRaisesRegex(processes.ProcessError, "^no such peer$"):
            self.last_line("import sys; print('{\"error\": \"no such peer\"}'); sys.exit(1)")
        with self.assertRaisesRegex(processes.ProcessError, "^too slow$"):
            self.last_line("import sys; print('{\"error\": {\"code\": \"X\", \"message\": \"too slow\"}}'); sys.exit(1)")

    def test_tells_the_last_line_of_a_crash(self):
        with self.assertRaisesRegex(processes.ProcessError, "ZeroDivisionError"):
            self.last_line("1 / 0")
        with self.assertRaisesRegex(processes.ProcessError, "said nothing"):
            self.last_line("pass")

    def test_ends_what_takes_too_long_with_all_that_it_started(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            # The grandchild leaves the session, and holds the pipe open as long as it lives.
            inner = "import time; file = open(%r, 'w'); time.sleep(1000)" % pipe
            code = ("import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', %r], start_new_session=True); "
                    "time.sleep(1000)" % inner)
            with self.assertRaisesRegex(processes.ProcessError, "not done after"):
                self.last_line(code, 2)
            self.assertEqual(os.read(reading, 1), b"")
            os.close(reading)
        self.assertEqual(processes.descendants(), [])


class EnvironmentTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)

    def requirements(self, text):
        path = self.home / "requirements.txt"
        path.write_text(text, encoding="ascii")
        return path

    def test_is_installed_when_the_same_was_finished(self):
        requirements = self.requirements("a==1\nb==2\n")
        self.assertFalse(environment.is_installed(self.home, "x", requirements))
        (self.home / "x").mkdir()
        (self.home / "x" / environment.STAMP).write_text(environment.stamp_of(requirements), encoding="utf-8")
        self.assertTrue(environment.is_installed(self.home, "x", requirements))
        environment.install(self.home, "x", requirements, self.fail)  # does nothing
        self.assertFalse(environment.is_installed(self.home, "x", self.requirements("a==1\nb==3\n")))

    def test_the_version_is_the_one_that_is_pinned(self):
        self.assertEqual(environment.pinned_version("a==1\nb-c==2.0.post1\n", "b-c"), "2.0.post1")
        with self.assertRaises(KeyError):
            environment.pinned_version("a==1\n", "b")

    def test_an_error_is_what_pip_said_last(self):
        self.assertEqual(environment.last_words("Looking\nERROR: No matching distribution\nnotice: update\n"),
                         "ERROR: No matching distribution")
        self.assertEqual(environment.last_words("a\nb\n\n"), "b")
        self.assertEqual(environment.last_words(""), "it said nothing")

    def test_a_command_that_fails_is_an_error(self):
        with self.assertRaisesRegex(environment.InstallError, "no way"):
            environment.run([sys.executable, "-c", "import sys; print('no way'); sys.exit(1)"])
        with self.assertRaisesRegex(environment.InstallError, "there is no /nowhere"):
            environment.run(["/nowhere"])

    def test_a_peer_whose_module_lacks_a_library_says_what_to_install(self):
        class Incomplete(peer.Peer):
            package = ""  # runs in this Python
            imports = "no_such_module_of_a_peer"
            libraries = "libnothing1"

        with self.assertRaises(peer.Unavailable) as refused:
            Incomplete().try_import(self.home)
        self.assertRegex(str(refused.exception),
                         "cannot be imported: .*no_such_module_of_a_peer.*apt-get install libnothing1")

    def test_a_peer_that_cannot_be_installed_is_unavailable(self):
        requirements = self.requirements("--no-index\ntensorhub-has-no-such-package==1\n")

        class Impossible(peer.Peer):
            name, package = "impossible", "tensorhub-has-no-such-package"

            def requirements(self):
                return requirements

        said = []
        with self.assertRaises(peer.Unavailable):
            Impossible().prepare(self.home, said.append)
        self.assertTrue(said)
        self.assertFalse(environment.is_installed(self.home, "impossible", requirements))


class RecordingWorker(fleet.Worker):
    def transfer(self):
        if self.index == 9:
            raise RuntimeError("no route")


class ServeTest(unittest.TestCase):
    def answers(self, worker, *commands):
        out = io.StringIO()
        fleet.serve(worker, io.StringIO("".join(json.dumps(command) + "\n" for command in commands)), out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_goes_through_the_course(self):
        holder = RecordingWorker(peer.Shape(5000), fleet.HOLDER)
        answers = self.answers(holder, {"do": "open", "contact": {}}, {"do": "connect"}, {"do": "prepare", "version": 1},
                               {"do": "go"}, {"do": "cpu"}, {"do": "compare", "version": 1}, {"do": "compare", "version": 2})
        self.assertEqual(answers[0], {"contact": {}})
        self.assertGreater(answers[3]["ended"], 0)
        self.assertGreaterEqual(answers[4]["seconds"], 0)
        self.assertEqual([answers[5]["matches"], answers[6]["matches"]], [True, False])

    def test_a_failure_is_an_answer(self):
        self.assertEqual(self.answers(RecordingWorker(peer.Shape(1), 9), {"do": "go"}),
                         [{"error": "RuntimeError: no route"}])


class ScriptedFleet:
    """Answers like workers, without processes. `wrong` is the reader that compares badly, if any."""

    def __init__(self, readers, wrong=0):
        self.readers, self.wrong, self.told = range(1, readers + 1), wrong, []

    def ask(self, indices, command):
        self.told.append((command["do"], list(indices)))
        answers = {"open": {"contact": {"port": 7}}, "go": {"ended": 1e12}, "cpu": {"seconds": 0.5}}
        if command["do"] == "compare":
            return [{"matches": index != self.wrong} for index in indices]
        return [answers.get(command["do"], {}) for _ in indices]

    def everybody(self, command):
        return self.ask(range(len(self.readers) + 1), command)


class MeasureTest(unittest.TestCase):
    def test_warms_up_once_and_adds_the_readers_time(self):
        scripted = ScriptedFleet(2)
        run = fleet.measure(scripted, peer.Shape(10, readers=2))
        self.assertEqual((run.holder_cpu_seconds, run.readers_cpu_seconds, run.verified, run.bytes), (0.5, 1.0, True, 10))
        self.assertEqual([what for what, _ in scripted.told].count("go"), 2)
        self.assertEqual(scripted.told[0], ("open", [0]))
        self.assertEqual(scripted.told[1], ("open", [1, 2]))

    def test_one_wrong_reader_is_enough(self):
        self.assertFalse(fleet.measure(ScriptedFleet(2, wrong=2), peer.Shape(10, readers=2)).verified)


class Iperf3Test(unittest.TestCase):
    SHAPE = peer.Shape(bytes=1000, streams=3, congestion="cubic")

    def report(self, **total):
        return json.dumps({"end": {"sum_received": total}})

    def test_the_command_has_the_shape(self):
        command = iperf3.client_command(self.SHAPE, 5)
        for flag, value in (("-n", "1000"), ("-P", "3"), ("-C", "cubic"), ("-p", "5")):
            self.assertEqual(command[command.index(flag) + 1], value)
        self.assertNotIn("-C", iperf3.client_command(peer.Shape(1), 5))

    def test_seconds_are_of_all_bytes(self):
        self.assertEqual(iperf3.received(self.report(seconds=2.0, bytes=1000), self.SHAPE), 2.0)
        self.assertEqual(iperf3.received(self.report(seconds=2.0, bytes=500), self.SHAPE), 4.0)

    def test_no_bytes_or_an_error_are_failures(self):
        for text in (self.report(seconds=2.0, bytes=0), '{"error": "refused"}', "", "{}", "[]"):
            with self.subTest(text), self.assertRaises(peer.Failed):
                iperf3.received(text, self.SHAPE)


class UcxTest(unittest.TestCase):
    def test_structures_are_laid_out_as_ucp_has_them(self):
        self.assertEqual(ucx.RequestParams.memory_handle.offset, 64)
        self.assertEqual(ucx.MemMapParams.length.offset, 16)
        self.assertEqual(ucx.EndpointParams.address.offset, 8)

    def test_tcp_and_the_same_host_are_kept_apart(self):
        self.assertNotIn("sm", ucx.variables(peer.Shape(1))["UCX_TLS"])
        self.assertNotIn("tcp", ucx.variables(peer.Shape(1, transport="same_host"))["UCX_TLS"])


class EveryByteTest(unittest.TestCase):
    """The peers that need no installation, for real and small."""

    @classmethod
    def setUpClass(cls):
        processes.adopt_orphans()

    def test_memory_peers_deliver(self):
        for name in ("memcpy", "process_vm_readv"):
            with self.subTest(name):
                run = catalog.find(name).run("/nowhere", peer.Shape(3 << 20, readers=2, transport="same_host"))
                self.assertTrue(run.verified)
                self.assertGreater(run.last_reader_seconds, 0)
                self.assertGreater(run.readers_cpu_seconds, 0)

    def test_iperf3_delivers_where_it_is_there(self):
        found = catalog.find("iperf3")
        try:
            found.prepare("/nowhere", print)
        except peer.Unavailable as missing:
            self.skipTest(str(missing))
        run = found.run("/nowhere", peer.Shape(8 << 20, readers=2))
        self.assertGreater(run.last_reader_seconds, 0)
        self.assertFalse(run.verified)


if __name__ == "__main__":
    unittest.main()
