"""The page of th/server/page in a headless Chromium: what it shows of an answer, and what it does when none comes.

Started by testing/page/run, which installs Chromium. AnyServerTest compares the page of any server with that server's
own answer: TENSORHUB_PAGE_URL names one, http://HOST:PORT/; without it, a fleet that is made up.
"""

import json
import os
import pathlib
import re
import tempfile
import time
import unittest
import urllib.request

import fake_server
from browser import Browser
from fake_server import event, model, replica, stalled, state, version

from testing.checkpoint_files import write_checkpoint
from testing.started_processes import Processes
from testing.waiting import until

GB = 10**9
HOSTILE = '<img src=x onerror="window.hostile = 1">'
NEWEST = "28452946.2"
# The page's own work for one answer with 1,000 replicas. Other load on the machine only adds to it, so that one quiet
# row of answers is enough to show that the page keeps within it.
MOST_REFRESH_MS = 50.0
REFRESHES = 10
ROWS = 3


def setUpModule() -> None:
    os.environ["TZ"] = "UTC"  # of the times that the page shows
    PageTest.browser = Browser()
    unittest.addModuleCleanup(PageTest.browser.close)


class PageTest(unittest.TestCase):
    """One window for all tests; each opens the page anew."""

    browser: Browser

    def setUp(self) -> None:
        self.browser.resize(1280, 1000)
        self.browser.prefer("light")
        self.browser.open("about:blank")  # so that a page of the same address is loaded again
        self.browser.console()

    def open(self, base_url: str, view: str = "") -> None:
        """Opens the page and awaits its first picture."""
        self.browser.open(base_url + view)
        self.await_answers(1)

    def serve(self, answer) -> fake_server.PageServer:
        """`answer` is a picture, or a function that makes one for each request."""
        server = fake_server.PageServer(answer if callable(answer) else lambda: answer)
        self.addCleanup(server.close)
        return server

    def show(self, answer, view: str = "") -> fake_server.PageServer:
        server = self.serve(answer)
        self.open(server.url, view)
        return server

    def answers(self) -> int:
        return int(self.browser.run("return document.body.dataset.answers || 0"))

    def await_answers(self, more: int) -> None:
        wanted = self.answers() + more
        until(lambda: self.answers() >= wanted, "%d answers shown" % wanted, self.explain)

    def await_text(self, selector: str, text: str) -> None:
        until(lambda: text in self.text(selector), "'%s' in %s" % (text, selector), self.explain)

    def explain(self) -> str:
        return "outage: %s\nconsole: %s" % (self.text("#outage"), self.browser.console())

    def text(self, selector: str) -> str:
        """The text that is shown; nothing of an element that is hidden."""
        return self.browser.run(
            "const node = document.querySelector(arguments[0]); return node.checkVisibility() ? node.textContent : '';",
            selector,
        )

    def rows(self, selector: str) -> list[list[str]]:
        return self.browser.run(
            """return [...document.querySelectorAll(arguments[0] + ' tr')]
                 .map((row) => [...row.cells].map((cell) => cell.textContent));""",
            selector,
        )

    def places(self) -> dict:
        """{(site, rack): groups}, in the order in which they are shown."""
        found = self.browser.run(
            """return [...document.querySelectorAll('.rack')].map((rack) =>
                 [rack.closest('.site').querySelector('h3').textContent.split(' · ')[0],
                  rack.querySelector('h4').textContent,
                  [...rack.querySelectorAll('.tile')].map((tile) => tile.replica.group)]);"""
        )
        return {(site, rack): groups for site, rack, groups in found}

    def tile(self, group: str) -> dict:
        return self.browser.run(
            """const tile = [...document.querySelectorAll('.tile')].find((tile) => tile.replica.group === arguments[0]);
               const box = tile.getBoundingClientRect();
               const width = (selector) => tile.querySelector(selector).getBoundingClientRect().width;
               return { text: tile.innerText, state: tile.dataset.state, name: tile.getAttribute('aria-label'),
                 glyph: tile.querySelector('.glyph').textContent, share: width('.bar i') / width('.bar'),
                 x: box.x, y: box.y, right: box.right, bottom: box.bottom };""",
            group,
        )

    def lines(self) -> dict:
        """{(source, reader): rate, begin and end of the line in the window}"""
        found = self.browser.run(
            """const origin = document.querySelector('#lines').getBoundingClientRect();
               const place = (point) => [point.x + origin.x, point.y + origin.y];
               return [...document.querySelectorAll('#fill-lines g')].map((line) => {
                 const path = line.querySelector('path');
                 return [line.dataset.source, line.dataset.reader, Number(line.dataset.rate),
                   place(path.getPointAtLength(0)), place(path.getPointAtLength(path.getTotalLength())),
                   parseFloat(path.getAttribute('stroke-width'))];
               });"""
        )
        return {
            (source, reader): {"rate": rate, "begin": begin, "end": end, "width": width}
            for source, reader, rate, begin, end, width in found
        }


class AnyServerTest(PageTest):
    """Holds for each server, whatever it has."""

    base_url = os.environ.get("TENSORHUB_PAGE_URL", "")

    def setUp(self) -> None:
        super().setUp()
        if not self.base_url:
            began = time.monotonic()
            fleet = fake_server.Fleet(40, 6, seed=1)
            self.base_url = self.serve(lambda: fleet.picture(100 + time.monotonic() - began)).url

    def state(self) -> dict:
        with urllib.request.urlopen(self.base_url + "state.json", timeout=10) as answer:
            return json.load(answer)

    def test_the_page_shows_what_the_server_answers(self) -> None:
        before = self.state()
        self.open(self.base_url)
        self.assertEqual(self.text("#address"), before["server"]["address"])
        self.assertEqual(self.text("#epoch"), str(before["server"]["epoch"]))
        models = self.browser.run("return [...document.querySelector('#model').options].map((option) => option.value)")
        self.assertEqual(models, ["%s/%s" % (each["run"], each["model"]) for each in before["models"]])

    def test_each_model_shows_its_replicas_and_versions(self) -> None:
        for each in self.state()["models"]:
            with self.subTest(model=each["model"]):
                self.browser.open("about:blank")
                self.open(self.base_url, "#model=%s/%s" % (each["run"], each["model"]))
                shown = sorted(group for groups in self.places().values() for group in groups)
                self.assertEqual(shown, sorted(r["group"] for r in each["replicas"]))
                labels = [row[0] for row in self.rows("#versions")]
                self.assertLessEqual({v["label"] for v in each["versions"][:-1]}, set(labels))

    def test_nothing_is_fetched_from_elsewhere(self) -> None:
        self.open(self.base_url)
        self.await_answers(1)
        fetched = self.browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertTrue(fetched)
        self.assertEqual({name for name in fetched if name != self.base_url + "state.json"}, set())
        self.assertEqual(self.browser.console(), [])


class RealServerTest(AnyServerTest):
    """The page of a server of its own, with a publisher and a follower; TENSORHUB_BIN has the programs."""

    def setUp(self) -> None:
        programs = os.environ.get("TENSORHUB_BIN")
        if not programs:
            self.skipTest("TENSORHUB_BIN names no folder with tensorhub_server and tensorhub_worker")
        processes = Processes(self, "page-")
        write_checkpoint(processes.folder / "model")
        listen = ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--state-dir=state"]
        self.server = processes.start("server", programs + "/tensorhub_server", "--json", *listen)
        announced = json.loads(processes.await_text(self.server, r"\{.*\}").group())
        connection = ["--server", announced["address"], "--run", "r1", "--model", "m"]
        for name, awaited, command in (
            ("trainer", "published", ["publish", "--dir", "model", "--label", "step-1"]),
            ("rollout-1", "version=step-1", ["follow", "--group", "rollout-1"]),
        ):
            worker = processes.start(name, programs + "/tensorhub_worker", *command, *connection)
            processes.await_text(worker, awaited)
        self.base_url = "http://%s/" % announced["http"]
        super().setUp()

    def test_the_follower_holds_what_the_publisher_has(self) -> None:
        self.open(self.base_url)
        self.assertEqual({self.tile(group)["state"] for group in ("trainer", "rollout-1")}, {"published", "complete"})
        self.assertIn("published", self.text("#events"))

    def test_a_server_that_goes_leaves_its_last_picture(self) -> None:
        self.open(self.base_url)
        self.server.kill()
        self.await_text("#outage", "No answer since")
        self.assertEqual(self.tile("rollout-1")["state"], "complete")


class ModelTest(PageTest):
    """What is shown of one answer."""

    def test_versions_say_their_state_and_who_holds_them(self) -> None:
        versions = [
            version(NEWEST, "step-2", pins=3),
            version("28452946.1", "step-1", withdrawn=True),
            version("28452945.9", "step-0", lost=True, bytes=1500),
            version("28452945.8", "step-00", published=False),
        ]
        held = {"version": NEWEST, "label": "step-2"}
        replicas = [
            replica(group="trainer", state="published", **held),
            replica(group="a", **held),
            replica(group="b", state="filling", held=fake_server.WHOLE // 2, **held),
            replica(group="c", version="28452946.1", label="step-1"),
        ]
        self.show(state(1, [model("r1", "m", versions, replicas)], []))
        self.assertEqual(
            self.rows("#versions"),
            [
                ["step-2", NEWEST, "published", "61.0 GB", "2", "1", "3"],
                ["step-1", "28452946.1", "withdrawn", "61.0 GB", "1", "0", "0"],
                ["step-0", "28452945.9", "LOST, published", "1.50 kB", "0", "0", "0"],
                ["step-00", "28452945.8", "not published", "61.0 GB", "0", "0", "0"],
            ],
        )

    def test_tiles_stand_in_their_site_and_rack(self) -> None:
        held = {"version": NEWEST, "label": "step-2"}
        replicas = [
            replica(group="rollout-10", site="us", rack="r2", **held),
            replica(group="rollout-9", site="us", rack="r2", **held),
            replica(group="rollout-1", site="us", rack="r10", **held),
            replica(group="rollout-0", **held),
            replica(group="trainer", site="eu", rack="r1", state="published", publisher=True, **held),
            replica(group="rollout-2", site="eu", rack="r1", **held),
        ]
        self.show(state(1, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], []))
        places = self.places()
        self.assertEqual(
            list(places.items()),
            [
                (("eu", "r1"), ["trainer", "rollout-2"]),
                (("us", "r2"), ["rollout-9", "rollout-10"]),
                (("us", "r10"), ["rollout-1"]),
                (("no site", "no rack"), ["rollout-0"]),
            ],
        )

    def test_a_tile_tells_its_state_by_shape_and_word(self) -> None:
        states = ["idle", "publishing", "filling", "draining", "published", "complete", "leaving", "of-next-year"]
        half = fake_server.WHOLE // 2
        replicas = [replica(group="in-" + s, state=s, held=half, version=NEWEST, label="step-2") for s in states]
        self.show(state(1, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], []))
        tiles = {s: self.tile("in-" + s) for s in states}
        self.assertEqual(len({tile["glyph"] for tile in tiles.values()}), len(states))
        for name, tile in tiles.items():
            self.assertEqual(tile["state"], name)
            self.assertIn("step-2", tile["text"])
            self.assertIn("50 %" if name == "filling" else name, tile["text"])
            self.assertEqual(tile["name"], "in-%s, %s, step-2, 50 %%" % (name, name))
            self.assertAlmostEqual(tile["share"], 0.5, delta=0.02)
        self.assertIn("1 draining", self.text("#legend"))

    def test_what_the_server_left_out_is_said(self) -> None:
        replicas = [replica(group="a", version=NEWEST, label="step-2")]
        self.show(state(1, [model("r1", "m", [], replicas, left_out=1234)], [], recovering=True))
        self.assertIn("1,234 more of this model are not in the server's answer", self.text("#replicas-note"))
        self.assertIn("recovering", self.text("#recovering"))
        self.assertEqual(self.text("#models-note"), "")
        self.show(state(2, [model("r1", "m", [], replicas)], [], models_left_out=7))
        self.assertEqual(self.text("#models-note"), "7 more, unused ones")

    def test_stall_is_shown_by_phase(self) -> None:
        stall = {"resolve": 1.0, "queue": 0, "transfer": 90.0, "verify": 0, "apply": 5.0, "drain": 4.0, "failed": 0}
        replicas = [replica(group="a", ranks=4, version=NEWEST, label="step-2")]
        the_model = model("r1", "m", [], replicas, stall_s=stall, received_bytes=2 * GB, copies_from_publisher=1.02)
        self.show(state(1, [the_model], []))
        rows = {row[0]: row[2:] for row in self.rows("#stall")}
        self.assertEqual(rows["transfer"], ["1 min 30 s", "90 %"])
        self.assertEqual(rows["apply"], ["5.0 s", "5 %"])
        self.assertEqual(self.text("#stall-note"), "1 min 40 s in all, 25.0 s for each of 4 ranks")
        self.assertEqual(self.text("#received"), "2.00 GB received by updates, 1.02 whole copies sent by publishers")

    def test_the_ranks_that_waited_longest_are_shown_with_their_phases(self) -> None:
        longest = [stalled("a/3", transfer=60.0, queue=30.0, verify=0.5, failed=0.0), stalled("b/0", drain=9.05)]
        self.show(state(1, [model("r1", "m", [], [], longest_stalls=longest)], []))
        rows = self.rows("#stalled-ranks")
        self.assertEqual([[row[0], *row[2:]] for row in rows], [
            ["a/3", "1 min 30 s", "transfer 1 min 0 s, queue 30.0 s"],
            ["b/0", "9.1 s", "drain 9.1 s"],
        ])
        self.show(state(2, [model("r1", "m", [], [])], []))
        self.assertTrue(self.browser.run("return document.getElementById('longest-stalls').hidden"))

    def test_the_hash_chooses_the_model(self) -> None:
        models = [model("r1", name, [], [replica(group="of-" + name, version="", label="")]) for name in ("m", "n")]
        self.show(state(1, models, []), "#model=r1/n")
        self.assertEqual(list(self.places().values()), [["of-n"]])
        self.browser.run("location.hash = '#model=r1/m'")
        until(lambda: list(self.places().values()) == [["of-m"]], "the other model is shown", self.explain)
        self.browser.run("location.hash = '#model=r1/gone'")
        self.await_text("#replicas-note", "r1/gone is not known to this server")
        self.assertEqual(self.places(), {})

    def test_details_of_a_tile_come_with_the_keyboard_and_go_with_escape(self) -> None:
        replicas = [replica(group=g, hosts=["node-" + g], version=NEWEST, label="step-2") for g in ("a", "b")]
        self.show(state(1, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], []))
        self.browser.press(".tile[tabindex='0']", "\ue014")  # the right arrow
        self.await_text("#details", "node-b")
        self.assertEqual(self.browser.run("return document.activeElement.replica.group"), "b")
        self.assertEqual(self.browser.run("return document.querySelectorAll('.tile[tabindex=\"0\"]').length"), 1)
        self.browser.press(".tile[tabindex='0']", "\ue00c")  # Escape
        self.assertEqual(self.text("#details"), "")

    def test_a_click_keeps_the_details(self) -> None:
        replicas = [replica(group="a", hosts=["node-a"], version=NEWEST, label="step-2")]
        self.show(state(1, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], []))
        self.browser.click(".tile")
        self.browser.run("document.activeElement.blur()")
        self.await_answers(1)
        self.assertIn("node-a", self.text("#details"))

    def test_hostile_names_are_shown_as_text(self) -> None:
        hostile = replica(group=HOSTILE, buffer=HOSTILE, form=HOSTILE, role=HOSTILE, state=HOSTILE, version=HOSTILE)
        hostile.update(label=HOSTILE, site=HOSTILE, rack=HOSTILE, hosts=[HOSTILE], sources=[[HOSTILE, 1], ["b", 1]])
        hostile.update(transports=[HOSTILE], operation=HOSTILE, event=HOSTILE, held=1)
        replicas = [hostile, replica(group="b", version=HOSTILE, label="x")]
        the_model = model(HOSTILE, HOSTILE, [version(HOSTILE, HOSTILE)], replicas, stall_s={HOSTILE: 1.0})
        the_model["longest_stalls"] = [stalled(HOSTILE, **{HOSTILE: 1.0})]
        events = [event(1, HOSTILE, HOSTILE, HOSTILE, HOSTILE, run=HOSTILE, model=HOSTILE)]
        self.show(state(1, [the_model], events, address=HOSTILE, version=HOSTILE, epoch=HOSTILE))
        self.await_answers(1)
        self.browser.click(".tile")
        header, lists = ["address", "server-version", "epoch", "model"], ["versions", "stall", "stalled-ranks", "fills", "events"]
        for name in [*header, *lists, "sites", "legend", "kind", "details"]:
            self.assertIn(HOSTILE, self.text("#" + name), name)
        self.browser.click("#events a")
        self.await_text("#events-title", HOSTILE)
        self.assertEqual(self.browser.run("return [document.images.length, typeof window.hostile]"), [0, "undefined"])
        self.assertEqual(self.browser.console(), [])


class FillTest(PageTest):
    """Who fills from whom. The server's clock moves by 2 s for each answer, however fast the page asks."""

    RATE = 3 * GB

    def picture(self) -> dict:
        self.asked = getattr(self, "asked", 0) + 1
        at_s = 2.0 * self.asked
        held = {"version": NEWEST, "label": "step-2"}
        moved = int(self.RATE * at_s) % fake_server.WHOLE
        fields = {"operation": "update", "operation_s": at_s, "event": "28452946-12", "transports": ["tcp", "ibverbs"]}
        fields.update(held=moved, sources=[["trainer", 2], ["helper", 1], ["left-out", 1]])
        replicas = [
            replica(group="trainer", state="published", site="eu", rack="r1", **held),
            replica(group="helper", site="us", rack="r1", **held),
            replica(group="reader", state="filling", site="eu", rack="r2", **held, **fields),
            replica(group="stuck", state="filling", site="us", rack="r1", held=5, sources=[["helper", 1]], **held),
        ]
        return state(at_s, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], [])

    def setUp(self) -> None:
        super().setUp()
        self.show(self.picture)
        until(lambda: self.lines()["trainer", "reader"]["rate"] > 0, "a rate is measured", self.explain)

    def test_the_rate_is_that_of_the_servers_clock(self) -> None:
        reader = {row[0]: row for row in self.rows("#fills")}["reader"]
        number, unit = reader[3].split()
        self.assertEqual(unit, "GB/s")
        self.assertAlmostEqual(float(number), self.RATE / GB, delta=0.2 * self.RATE / GB)
        self.assertIn("GB/s", self.tile("reader")["text"])

    def test_the_table_tells_sources_transports_and_operation(self) -> None:
        rows = {row[0]: row for row in self.rows("#fills")}
        self.assertEqual(rows["reader"][1:3], ["step-2", "trainer ×2, helper, left-out"])
        self.assertRegex(rows["reader"][4], r"^\d+ % of 61.0 GB$")
        self.assertEqual(rows["reader"][5], "tcp, ibverbs")
        self.assertEqual(rows["reader"][7], "28452946-12")
        self.assertEqual(rows["stuck"][3], "0.0 MB/s")

    def test_lines_lead_from_sources_to_readers(self) -> None:
        lines = self.lines()
        self.assertEqual(set(lines), {("trainer", "reader"), ("helper", "reader"), ("helper", "stuck")})
        for (source, reader), line in lines.items():
            begin, end = self.tile(source), self.tile(reader)
            self.assertAlmostEqual(line["begin"][1], begin["bottom"], delta=1.5)
            self.assertTrue(begin["x"] < line["begin"][0] < begin["right"], (source, line))
            self.assertAlmostEqual(line["end"][0], end["x"], delta=1.5)
            self.assertTrue(end["y"] < line["end"][1] < end["bottom"], (reader, line))

    def test_a_readers_rate_is_shared_out_by_the_ranks_that_pull(self) -> None:
        lines = self.lines()
        self.assertAlmostEqual(lines["trainer", "reader"]["rate"], self.RATE / 2, delta=0.2 * self.RATE / 2)
        self.assertAlmostEqual(lines["helper", "reader"]["rate"], self.RATE / 4, delta=0.2 * self.RATE / 4)
        self.assertGreater(lines["trainer", "reader"]["width"], lines["helper", "reader"]["width"])
        self.assertGreater(lines["helper", "reader"]["width"], lines["helper", "stuck"]["width"])

    def test_lines_move_with_the_tiles(self) -> None:
        self.browser.resize(700, 1000)

        def ends_at_its_reader() -> bool:
            return abs(self.lines()["helper", "stuck"]["end"][0] - self.tile("stuck")["x"]) < 1.5

        until(ends_at_its_reader, "the line ends at its reader's new place", self.explain)


class LineTest(PageTest):
    """Lines of a whole fleet, within a site and between two."""

    def tiles_crossed(self) -> list:
        """[source, reader, the tile that their line runs over], looked at each 2 pixels; edges may be touched."""
        return self.browser.run(
            """const origin = document.querySelector('#lines').getBoundingClientRect();
               const tiles = [...document.querySelectorAll('.tile')]
                 .map((tile) => [tile.replica.group, tile.getBoundingClientRect()]);
               const within = (place, low, high) => place > low + 1 && place < high - 1;
               const over = ({ x, y }) => tiles.find(([, box]) =>
                 within(x + origin.x, box.left, box.right) && within(y + origin.y, box.top, box.bottom));
               return [...document.querySelectorAll('#fill-lines g')].flatMap((line) => {
                 const path = line.querySelector('path');
                 for (let at = 0; at < path.getTotalLength(); at += 2) {
                   const tile = over(path.getPointAtLength(at));
                   if (tile) return [[line.dataset.source, line.dataset.reader, tile[0]]];
                 }
                 return [];
               });"""
        )

    def test_lines_run_over_no_tile(self) -> None:
        for replicas, width in ((40, 1280), (40, 700), (150, 1280)):
            with self.subTest(replicas=replicas, width=width):
                self.browser.resize(width, 1000)
                # A sweep has just begun: the trainer serves both sites, and ends of the last sweep are still under way.
                fleet = fake_server.Fleet(replicas, 12, seed=2)
                self.show(fleet.picture(3 * fleet.rollouts * fleet.interval_s + 5))
                self.assertGreater(len(self.lines()), 6)
                self.assertEqual(self.tiles_crossed(), [])


class EventTest(PageTest):
    EVENTS = [
        event(10.0, "published", "28452946-3", "trainer", "step-2"),
        event(10.25, "update began", "28452946-12", "rollout-1", "to step-2"),
        event(10.5, "update began", "28452946-13", "rollout-2", "to step-2"),
        event(11.0, "source failed", "28452946-12", "rollout-1", "trainer: silent"),
        event(12.5, "update moved", "28452946-12", "rollout-1", "step-2 after 2.2s"),
        event(13.0, "lease expired", "", "rollout-9", "silent for 10 s"),
    ]

    def show_events(self, view: str = "") -> None:
        self.show(state(14, [model("r1", "m", [], [])], self.EVENTS), view)

    def shown(self) -> list[str]:
        return [" / ".join(row[1:4]) for row in self.rows("#events")]

    def await_shown(self, wanted: list[str]) -> None:
        until(lambda: self.shown() == wanted, "these events are shown: %s" % wanted, lambda: str(self.shown()))

    def test_the_newest_event_comes_first(self) -> None:
        self.show_events()
        self.assertEqual(len(self.shown()), len(self.EVENTS))
        self.assertEqual(self.shown()[0], "lease expired / rollout-9 / silent for 10 s")
        self.assertEqual(self.rows("#events")[0][0], "18:30:13.000")

    def test_text_and_kind_filter_from_the_hash(self) -> None:
        self.show_events("#filter=ROLLOUT-1+step&kind=update+began")
        self.assertEqual(self.shown(), ["update began / rollout-1 / to step-2"])
        controls = self.browser.run("return ['#filter', '#kind'].map((name) => document.querySelector(name).value)")
        self.assertEqual(controls, ["ROLLOUT-1 step", "update began"])
        self.assertIn("1 event of 6", self.text("#events-note"))

    def test_typing_filters_and_changes_the_hash(self) -> None:
        self.show_events("#model=r1/m")
        self.browser.press("#filter", "silent")
        self.await_shown(["lease expired / rollout-9 / silent for 10 s", "source failed / rollout-1 / trainer: silent"])
        self.assertEqual(self.browser.run("return location.hash"), "#model=r1/m&filter=silent")
        self.browser.press("#kind", "lease")  # a list chooses what begins with the letters that are typed
        self.await_shown(["lease expired / rollout-9 / silent for 10 s"])

    def test_an_id_leads_to_the_course_of_its_operation(self) -> None:
        self.show_events()
        self.browser.click("#events a[href$='28452946-12']")
        self.await_shown(
            [
                "update began / rollout-1 / to step-2",
                "source failed / rollout-1 / trainer: silent",
                "update moved / rollout-1 / step-2 after 2.2s",
            ]
        )
        self.assertEqual([row[0] for row in self.rows("#events")], ["+0.000 s", "+0.750 s", "+2.250 s"])
        self.assertEqual(self.browser.run("return location.hash"), "#id=28452946-12")
        self.assertIn("28452946-12", self.text("#events-title"))
        self.browser.click("#course-end")
        until(lambda: len(self.shown()) == len(self.EVENTS), "all events are shown", self.explain)

    def test_the_hash_opens_a_course(self) -> None:
        self.show_events("#id=28452946-13&filter=nothing")
        self.assertEqual(self.shown(), ["update began / rollout-2 / to step-2"])


class OutageTest(PageTest):
    def picture(self) -> dict:
        replicas = [replica(group="a", version=NEWEST, label="step-2")]
        return state(120, [model("r1", "m", [version(NEWEST, "step-2")], replicas)], [])

    def assert_last_picture_with(self, reason: str) -> None:
        self.await_text("#outage", reason)
        self.assertRegex(
            self.text("#outage"),
            r"^No answer since \d\d:\d\d:\d\d \(server was at 10\.0\.0\.1:7077, epoch 28452946, up 2 min 0 s\): ",
        )
        self.assertEqual(list(self.places().values()), [["a"]])
        self.assertEqual(self.rows("#versions")[0][0], "step-2")

    def test_the_last_picture_stays_while_the_server_refuses(self) -> None:
        server = self.show(self.picture())
        server.silent = True
        self.assert_last_picture_with("it answers with HTTP status 503")
        server.silent = False
        until(lambda: self.text("#outage") == "", "the page takes the server back", self.explain)

    def test_the_last_picture_stays_when_the_server_is_gone(self) -> None:
        server = fake_server.PageServer(self.picture)
        port = server.port
        self.open(server.url)
        server.close()
        self.assert_last_picture_with("it cannot be reached")
        again = fake_server.PageServer(self.picture, port)
        self.addCleanup(again.close)
        until(lambda: self.text("#outage") == "", "the page takes the server back", self.explain)

    def test_the_time_of_the_last_answer_is_said(self) -> None:
        server = self.show(self.picture())
        self.await_answers(1)
        # The page may have had one more answer since, a second later.
        last = "performance.getEntriesByName('refresh').at(-1)"
        answered = self.browser.run("return performance.timeOrigin + %s.startTime" % last)
        server.silent = True
        self.await_text("#outage", "since")
        times = [time.strftime("%H:%M:%S", time.gmtime(answered / 1000 + after)) for after in (0, 1, 2)]
        self.assertIn(re.search(r"\d\d:\d\d:\d\d", self.text("#outage")).group(), times)

    def test_answers_that_cannot_be_read_do_not_stop_the_polling(self) -> None:
        wrong_types = {"models": [{"replicas": 7, "versions": [None, 3], "stall_s": []}, None], "events": "x"}
        bodies = [b"{", b"[]", json.dumps(wrong_types).encode(), b"\xff"]
        bodies += [json.dumps(self.picture()).replace('"a"', '{"toString": 1}').encode()]
        server = self.serve(lambda: bodies.pop(0) if bodies else self.picture())
        self.browser.open(server.url)
        until(lambda: self.text("#outage") != "", "the first answer is no answer", self.explain)
        until(lambda: list(self.places().values()) == [["a"]], "a good answer is shown", self.explain)
        self.assertEqual(self.text("#outage"), "")


class PollingTest(PageTest):
    def picture(self) -> dict:
        return state(1, [model("r1", "m", [], [])], [])

    def test_it_asks_about_once_a_second(self) -> None:
        self.show(self.picture())
        self.await_answers(4)
        starts = self.browser.run("return performance.getEntriesByType('resource').map((entry) => entry.startTime)")
        gaps = [after - before for before, after in zip(starts, starts[1:])]
        self.assertGreaterEqual(min(gaps), 990)

    def test_a_hidden_page_asks_nothing_until_it_is_shown(self) -> None:
        server = self.show(self.picture())
        hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
        hide += "document.dispatchEvent(new Event('visibilitychange')); return performance.now();"
        hidden_at = self.browser.run(hide, True)
        # A request may have been under way. Three periods of the page's own clock show that there is no other.
        until(lambda: self.browser.run("return performance.now()") > hidden_at + 3000, "3 s have passed", self.explain)
        last = self.browser.run("return performance.getEntriesByType('resource').at(-1).startTime")
        self.assertLessEqual(last, hidden_at)
        asked = server.asked
        self.browser.run(hide, False)
        until(lambda: server.asked > asked, "the page asks again", self.explain)


class LargeFleetTest(PageTest):
    def test_a_thousand_replicas_are_cheap(self) -> None:
        began = time.monotonic()
        fleet = fake_server.Fleet(1000, 300, seed=1)
        self.show(lambda: fleet.picture(100 + time.monotonic() - began))
        self.assertEqual(self.browser.run("return document.querySelectorAll('.tile').length"), 1000)
        averages = []
        for _ in range(ROWS):
            self.browser.run("performance.clearMeasures('refresh')")
            self.await_answers(REFRESHES)
            took = self.browser.run("return performance.getEntriesByName('refresh').map((entry) => entry.duration)")
            averages.append(sum(took) / len(took))
            print("a refresh of 1,000 replicas: %.1f ms on average, %.1f ms at most" % (averages[-1], max(took)))
            if averages[-1] < MOST_REFRESH_MS:
                break
        self.assertLess(min(averages), MOST_REFRESH_MS)
        self.assertGreater(len(self.lines()), 100)


class LooksTest(PageTest):
    """Writes screenshots into the folder TENSORHUB_PAGE_SCREENSHOTS, for people to look at."""

    def test_light_and_dark_fit_wide_and_narrow_windows(self) -> None:
        folder = os.environ.get("TENSORHUB_PAGE_SCREENSHOTS") or tempfile.mkdtemp(prefix="page-screenshots-")
        fleet = fake_server.Fleet(40, 8, seed=1)
        began = time.monotonic()
        self.show(lambda: fleet.picture(180 + time.monotonic() - began))
        self.await_answers(2)
        backgrounds = set()
        for scheme in ("light", "dark"):
            for width, height in ((1280, 1040), (700, 1500)):
                self.browser.prefer(scheme)
                self.browser.resize(width, height)
                self.await_answers(1)
                self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
                backgrounds.add(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
                path = pathlib.Path(folder) / ("%s-%d.png" % (scheme, width))
                self.browser.screenshot(path)
                self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(len(backgrounds), 2)
        print("screenshots are in %s" % folder)


if __name__ == "__main__":
    unittest.main(verbosity=2)
