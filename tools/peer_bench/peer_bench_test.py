"""Tests the pure parts of tools/bench: what is run in which order, what the figures come to, pages and pictures."""
import argparse
import json
import pathlib
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

from testing.peers import peer
from tools.peer_bench import bar_chart
from tools.peer_bench import command
from tools.peer_bench import contenders
from tools.peer_bench import figures
from tools.peer_bench import machine
from tools.peer_bench import network
from tools.peer_bench import report
from tools.peer_bench import run
from tools.peer_bench import schedule

SETTING = figures.Setting(2, "cubic")
FACTS = {"name": "gloo", "title": "gloo broadcast", "version": "2.1", "note": "tuned", "verified": True}


def sample(seconds, ours, **more):
    return figures.Sample(seconds, 10**9, ours_seconds=ours, ours_bytes=10**9, **more)


class FiguresTest(unittest.TestCase):
    def test_take_medians_and_pairs_of_the_same_round(self):
        row = figures.row(SETTING, FACTS, [sample(0.4, 0.1), sample(0.3, 0.1), sample(0.6, 0.3)], [])
        self.assertEqual(row["last_reader_seconds"], 0.4)
        self.assertEqual((row["seconds_min"], row["seconds_max"]), (0.3, 0.6))
        self.assertAlmostEqual(row["gbytes_per_s"], 2.5)  # 1 GB in 0.4 s
        self.assertAlmostEqual(row["ratio"], 3.0)
        self.assertAlmostEqual(row["ratio_min"], 2.0)
        self.assertAlmostEqual(row["ratio_max"], 4.0)

    def test_a_ratio_is_of_rates(self):
        quarter = figures.Sample(0.5, 250, ours_seconds=1.0, ours_bytes=1000)
        self.assertAlmostEqual(figures.ratio_to_ours(quarter), 2.0)
        self.assertIsNone(figures.ratio_to_ours(figures.Sample(1, 1)))

    def test_processor_time_is_of_a_gb_that_a_reader_received(self):
        row = figures.row(SETTING, FACTS, [sample(1, 1, holder_cpu_seconds=0.2, readers_cpu_seconds=0.6)], [])
        self.assertAlmostEqual(row["holder_cpu_seconds_per_gb"], 0.1)
        self.assertAlmostEqual(row["readers_cpu_seconds_per_gb"], 0.3)
        self.assertAlmostEqual(row["cpu_seconds_per_gb"], 0.4)

    def test_processor_time_that_is_not_known_is_none(self):
        self.assertIsNone(figures.row(SETTING, FACTS, [sample(1, 1)], [])["cpu_seconds_per_gb"])

    def test_nothing_measured_is_not_verified(self):
        row = figures.row(SETTING, FACTS, [], ["it crashed"])
        self.assertFalse(row["verified"])
        self.assertEqual((row["rounds"], row["failures"]), (0, ["it crashed"]))


class Runs(str):
    """A contender that is its name."""

    def __new__(cls, name, settings=("s", "t")):
        made = super().__new__(cls, name)
        made.settings = settings
        return made

    def runs_in(self, setting):
        return setting in self.settings


class ScheduleTest(unittest.TestCase):
    def test_everybody_runs_once_a_round_in_every_setting_and_the_order_alternates(self):
        order = list(schedule.rounds(["s", "t"], [Runs("a"), Runs("b"), Runs("c")], 2))
        self.assertEqual(order[:3], [(0, "s", "a"), (0, "s", "b"), (0, "s", "c")])
        self.assertEqual(order[6:9], [(1, "s", "c"), (1, "s", "b"), (1, "s", "a")])
        self.assertEqual(len(set(order)), 12)

    def test_nobody_runs_in_a_setting_that_is_not_its_own(self):
        order = list(schedule.rounds(["s", "t"], [Runs("a"), Runs("b", ["t"])], 2))
        self.assertEqual(order, [(0, "s", "a"), (0, "t", "a"), (0, "t", "b"), (1, "s", "a"), (1, "t", "b"), (1, "t", "a")])


class MachineTest(unittest.TestCase):
    def test_reads_what_the_kernel_says(self):
        self.assertEqual(machine.cpu_model_in("processor\t: 0\nmodel name\t: AMD EPYC: 2\n"), "AMD EPYC: 2")
        self.assertEqual(machine.cpu_model_in(""), "unknown processor")
        self.assertEqual(machine.memory_gib_in("MemTotal:  2097152 kB\n"), 2.0)

    def test_a_load_of_a_quarter_of_the_cores_is_busy(self):
        self.assertTrue(machine.is_busy(0.6, 2))
        self.assertFalse(machine.is_busy(0.4, 2))

    def test_a_busy_machine_is_said_to_be(self):
        about = machine.describe()
        self.assertIn("not idle", machine.sentence(dict(about, busy=True)))
        self.assertNotIn("not idle", machine.sentence(dict(about, busy=False)))


class NetworkTest(unittest.TestCase):
    """In the network that the test has; smoke_test.py makes one of its own."""

    def test_sockets_have_what_the_kernel_has(self):
        self.assertIn(network.congestion_of_sockets(), network.available())
        self.assertIn(network.congestion(), network.available())

    def test_what_is_there_already_needs_no_rights(self):
        network.set_congestion(network.congestion_of_sockets())

    def test_nobody_is_held_to_what_the_kernel_has(self):
        self.assertFalse(network.is_locked())

    def test_a_congestion_control_that_does_not_exist_is_an_error(self):
        with self.assertRaises(network.NetworkError):
            network.set_congestion("pigeon")


class ContendersTest(unittest.TestCase):
    REPORT = {"verified": True, "bytes": 10**9, "readers": 2, "last_reader_seconds_of_rounds": [0.5],
              "holder_cpu_seconds_per_gb": 0.1, "readers_cpu_seconds_per_gb": 0.2, "baseline_seconds_of_rounds": [0.4]}

    def test_ours_and_the_plain_probe_come_from_one_run(self):
        ours, plain = contenders.samples_of(self.REPORT)
        self.assertEqual((ours.seconds, plain.seconds, ours.bytes), (0.5, 0.4, 10**9))
        self.assertAlmostEqual(ours.readers_cpu_seconds, 0.4)
        self.assertAlmostEqual(figures.cpu_per_gb([ours], 2, "readers_cpu_seconds"), 0.2)

    def test_wrong_bytes_are_a_failure(self):
        with self.assertRaises(peer.Failed):
            contenders.samples_of(dict(self.REPORT, verified=False))

    def test_the_command_has_the_shape(self):
        words = contenders.Ours("th", "ours", "T", ["--checksum", "off"]).command(peer.Shape(5, 3, 4, "same_host"))
        for flag, value in (("--bytes", "5B"), ("--readers", "3"), ("--connections", "4"), ("--transport", "same_host"),
                            ("--rounds", "1"), ("--checksum", "off")):
            self.assertEqual(words[words.index(flag) + 1], value)

    def test_many_tensors_are_beside_one(self):
        names = [each.facts["name"] for each in contenders.ours_of("th", "tcp", 61000)]
        self.assertEqual(names, ["ours", "ours_unchecked", "ours_as_set", "ours_1_tensors", "ours_61000_tensors"])
        self.assertEqual(len(contenders.ours_of("th", "same_host", 0)), 2)

    def test_ours_is_held_to_the_setting_where_it_would_choose_another(self):
        held = [each for each in contenders.ours_of("th", "tcp", 0) if each.keeps_setting]
        self.assertEqual([each.facts["name"] for each in held], ["ours_as_set"])
        self.assertTrue(held[0].runs_in(figures.Setting(1, "bbr")))
        self.assertFalse(held[0].runs_in(figures.Setting(1, "cubic")))
        self.assertEqual([each for each in contenders.ours_of("th", "same_host", 0) if each.keeps_setting], [])


class Scripted:
    """A contender whose runs are given: seconds, or an exception."""

    def __init__(self, name, *outcomes, plain=None, keeps_setting=False):
        self.facts, self.outcomes, self.shapes = dict(FACTS, name=name, title=name), list(outcomes), []
        self.plain, self.plain_facts = figures.Sample(0.05, 100), dict(FACTS, name=plain) if plain else None
        self.keeps_setting = keeps_setting

    def runs_in(self, setting):
        return not self.keeps_setting or setting.congestion != "cubic"

    def run(self, shape):
        self.shapes.append(shape)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return figures.Sample(outcome, shape.bytes)


class Quiet(run.Progress):
    def say(self, text):
        pass


class RunAllTest(unittest.TestCase):
    def run_all(self, contenders_to_run, settings, count):
        return run.run_all(contenders_to_run, settings, count, peer.Shape(100), Quiet(1))

    def test_pairs_with_ours_of_the_same_round_whatever_the_order(self):
        setting = figures.Setting(3)
        ours, other = Scripted("ours", 0.1, 0.2, plain="plain"), Scripted("other", 0.4, 0.4)
        results = self.run_all([ours, other], [setting], 2)
        self.assertEqual([each.ours_seconds for each in results.beside_ours(setting, "other")], [0.1, 0.2])
        self.assertEqual(results.row(setting, other.facts)["ratio"], 3.0)
        self.assertEqual(results.row(setting, dict(FACTS, name="plain"))["last_reader_seconds"], 0.05)
        self.assertEqual({shape.readers for shape in other.shapes}, {3})

    def test_a_failure_leaves_the_others_and_two_end_it(self):
        setting = figures.Setting(1)
        ours = Scripted("ours", *[0.1] * 4)
        other = Scripted("other", peer.Failed("no"), 0.3, peer.Unavailable("no memory"))
        results = self.run_all([ours, other], [setting], 4)
        row = results.row(setting, other.facts)
        self.assertEqual((row["rounds"], row["failures"]), (1, ["no", "no memory"]))
        self.assertAlmostEqual(row["ratio"], 3.0)
        self.assertEqual(results.row(setting, ours.facts)["rounds"], 4)

    def test_a_round_in_which_ours_failed_has_no_ratio(self):
        setting = figures.Setting(1)
        results = self.run_all([Scripted("ours", peer.Failed("x"), 0.1), Scripted("other", 0.2, 0.3)], [setting], 2)
        row = results.row(setting, dict(FACTS, name="other"))
        self.assertEqual(row["rounds"], 2)
        self.assertAlmostEqual(row["ratio_min"], 3.0)
        self.assertAlmostEqual(row["ratio_max"], 3.0)

    def test_the_network_holds_to_the_setting_who_would_choose_another(self):
        held = Scripted("ours_as_set", 0.2, plain="plain_as_set", keeps_setting=True)
        with unittest.mock.patch.object(network, "set_congestion") as set_congestion:
            results = self.run_all([Scripted("ours", 0.1, 0.1, plain="plain"), held], run.settings_of([2], ["bbr", "cubic"]), 1)
        self.assertEqual(set_congestion.call_args_list,
                         [unittest.mock.call("bbr", locked=False), unittest.mock.call("bbr", locked=True),
                          unittest.mock.call("cubic", locked=False)])
        row = results.row(figures.Setting(2, "bbr"), held.facts)
        self.assertAlmostEqual(row["ratio"], 2.0)
        self.assertEqual(results.row(figures.Setting(2, "bbr"), held.plain_facts)["last_reader_seconds"], 0.05)

    def test_settings_go_by_congestion_control(self):
        self.assertEqual([setting.title() for setting in run.settings_of([1, 2], ["bbr", "cubic"])],
                         ["1 reader, bbr", "2 readers, bbr", "1 reader, cubic", "2 readers, cubic"])


def result_of(rows, **more):
    return dict({"name": "tcp", "command": "tools/bench", "machine": machine.describe(), "transport": "tcp",
                 "bytes": 10**9, "rounds": 1, "streams": 2, "network": "", "missing": [], "rows": rows}, **more)


class ReportTest(unittest.TestCase):
    def setUp(self):
        ours = figures.row(SETTING, dict(FACTS, name="ours", title="TensorHub", note=""), [sample(0.1, 0.1)], [])
        other = figures.row(SETTING, FACTS, [sample(0.25, 0.1, holder_cpu_seconds=1.0, readers_cpu_seconds=2.0)], [])
        none = figures.row(SETTING, dict(FACTS, name="ucx", title="UCX|get"), [], ["no | route"])
        self.result = result_of([ours, other, none],
                                missing=[{"peer": "ray", "title": "Ray", "reason": "no network"}], network="no network of its own")

    def test_the_page_names_everybody_and_why_not(self):
        page = report.markdown(self.result)
        self.assertIn("## 2 readers, cubic", page)
        self.assertIn("| **TensorHub** |", page)
        self.assertIn("| gloo broadcast | 2.1 | 0.25 | 0.25 – 0.25 | 4 | 2.50 (2.50 – 2.50) | 0.5 + 1 |", page)
        self.assertIn("failed: no / route", page)
        self.assertIn("- Ray is not in the table: no network", page)
        self.assertIn("- The bench had no network of its own.", page)
        self.assertIn("(tcp-cubic.svg)", page)

    def test_every_line_of_a_table_has_as_many_cells(self):
        lines = [line for line in report.markdown(self.result).splitlines() if line.startswith("|")]
        self.assertEqual({line.count("|") for line in lines}, {len(report.HEADS) + 1})

    def test_what_moved_other_bytes_or_threw_them_away_says_so(self):
        row = figures.row(SETTING, dict(FACTS, verified=False), [figures.Sample(1, 1 << 20)], ["late"])
        cells = report.cells(row, 1 << 30)
        self.assertEqual(cells[-1], "bytes are not compared; with 1 MiB; 1 runs failed: late")

    def test_a_picture_compares_the_same_bytes(self):
        row = figures.row(SETTING, FACTS, [figures.Sample(1.0, 250_000_000)], [])
        bar = report.bar_of(row, 10**9)
        self.assertEqual((bar.value, bar.low, bar.high), (4.0, 4.0, 4.0))
        self.assertEqual(bar.label, "gloo broadcast, as 238 MiB took")
        self.assertEqual(report.bar_of(figures.row(SETTING, FACTS, [figures.Sample(1.0, 999_999_000)], []), 10**9).label,
                         "gloo broadcast")

    def test_pictures_are_of_each_congestion_control(self):
        other = dict(self.result["rows"][0], congestion="bbr")
        names = report.pictures(dict(self.result, rows=self.result["rows"] + [other]))
        self.assertEqual(set(names), {"tcp-cubic.svg", "tcp-bbr.svg"})
        same_host = dict(other, congestion="")
        self.assertEqual(set(report.pictures(dict(self.result, name="x", transport="same_host", rows=[same_host]))), {"x.svg"})


class BarChartTest(unittest.TestCase):
    def drawn(self, *bars):
        text = bar_chart.Chart("A < B & \"C\"", "s", [bar_chart.Group("g", list(bars))]).svg()
        return xml.etree.ElementTree.fromstring(text)

    def bars_of(self, svg):
        """Widths of the bars; the first rectangle is the ground."""
        return [float(each.get("width")) for each in svg.iter("{http://www.w3.org/2000/svg}rect")][1:]

    def texts(self, svg):
        return [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]

    def test_lengths_are_in_proportion(self):
        first, second = self.bars_of(self.drawn(bar_chart.Bar("a", 1, 1, 1, True), bar_chart.Bar("b", 2, 2, 2)))
        self.assertAlmostEqual(second / first, 2, places=2)

    def test_text_is_escaped_and_values_are_written(self):
        texts = self.texts(self.drawn(bar_chart.Bar("<a>", 0.1234, 0.1, 0.2)))
        self.assertEqual(texts, ["A < B & \"C\"", "g", "<a>", "0.123 s"])

    def test_a_bar_far_longer_than_ours_is_cut_and_says_so(self):
        svg = self.drawn(bar_chart.Bar("a", 1, 1, 1, True), bar_chart.Bar("b", 100, 90, 110))
        first, second = self.bars_of(svg)
        self.assertAlmostEqual(second / first, bar_chart.LONGEST_OVER_OURS, places=1)
        self.assertIn("100 s, cut", self.texts(svg))

    def test_each_group_has_its_own_scale(self):
        groups = [bar_chart.Group("g", [bar_chart.Bar("a", value, value, value)]) for value in (1, 50)]
        first, second = self.bars_of(xml.etree.ElementTree.fromstring(bar_chart.Chart("t", "s", groups).svg()))
        self.assertEqual(first, second)

    def test_the_spread_lies_where_its_values_are(self):
        svg = self.drawn(bar_chart.Bar("a", 2, 1, 4))
        line = next(svg.iter("{http://www.w3.org/2000/svg}line"))
        width = self.bars_of(svg)[0]
        self.assertAlmostEqual(float(line.get("x1")) - bar_chart.LABEL_WIDTH, width / 2, places=0)
        self.assertAlmostEqual(float(line.get("x2")) - bar_chart.LABEL_WIDTH, width * 2, places=0)

    def test_bears_nothing(self):
        self.assertEqual(self.bars_of(self.drawn()), [])


class CommandLineTest(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([command.byte_size(text) for text in ("1GiB", "64MiB", "3KiB", "5B", "7")],
                         [1 << 30, 64 << 20, 3072, 5, 7])
        for text in ("0", "1GB", "-1", "many", ""):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                command.byte_size(text)

    def test_lists(self):
        self.assertEqual(command.numbers_up_to(64)("1,2,4,2"), [1, 2, 4])
        for text in ("0", "65", "1,", "x"):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                command.numbers_up_to(64)(text)

    def test_peers_are_known(self):
        self.assertEqual(command.peer_names("gloo,ucx"), ["gloo", "ucx"])
        self.assertEqual(command.peer_names(""), [])
        with self.assertRaisesRegex(argparse.ArgumentTypeError, "there is no peer nccl; there are tensorhub_python, memcpy"):
            command.peer_names("nccl")

    def test_the_page_tells_how_it_was_made(self):
        self.assertEqual(command.command_line(["--bytes", "1GiB", "--json"]), "tools/bench --bytes 1GiB")
        self.assertEqual(command.command_line(["--th", "/x", "--only", "", "--out=/y", "--cache", "/z", "--rounds", "2"]),
                         "tools/bench --only '' --rounds 2")

    def test_a_peer_that_cannot_be_had_is_named_and_the_rest_goes_on(self):
        class Missing(peer.Peer):
            name, title = "missing", "Missing"

            def prepare(self, home, progress):
                raise peer.Unavailable("no wheel")

        class There(peer.Peer):
            name = "there"

        there = There()
        found, missing = command.prepared([Missing(), there], "/nowhere", Quiet(1))
        self.assertEqual(found, [there])
        self.assertEqual(missing, [{"peer": "missing", "title": "Missing", "reason": "no wheel"}])

    def test_ours_comes_first_then_the_plain_probe_then_the_others(self):
        results = run.Results()
        listed = command.rows(results, [SETTING], [Scripted("ours", plain="plain"), Scripted("ours_unchecked"), Scripted("gloo")])
        self.assertEqual([row["peer"] for row in listed], ["ours", "ours_unchecked", "plain", "gloo"])

    def test_who_is_held_to_a_setting_has_a_row_where_it_runs(self):
        held = Scripted("ours_as_set", plain="plain_as_set", keeps_setting=True)
        settings = [SETTING, figures.Setting(2, "bbr")]
        listed = command.rows(run.Results(), settings, [Scripted("ours", plain="plain"), held, Scripted("gloo")])
        self.assertEqual([row["peer"] for row in listed if row["congestion"] == "cubic"], ["ours", "plain", "gloo"])
        self.assertEqual([row["peer"] for row in listed if row["congestion"] == "bbr"],
                         ["ours", "ours_as_set", "plain", "plain_as_set", "gloo"])

    def test_writes_the_page_the_pictures_and_the_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            row = figures.row(SETTING, FACTS, [sample(0.25, 0.1)], [])
            page = command.write(result_of([row]), folder)
            self.assertEqual((pathlib.Path(folder) / "tcp.md").read_text(encoding="utf-8"), page)
            self.assertEqual(json.loads((pathlib.Path(folder) / "tcp.json").read_text())["rows"], [row])
            self.assertTrue((pathlib.Path(folder) / "tcp-cubic.svg").is_file())


if __name__ == "__main__":
    unittest.main()
