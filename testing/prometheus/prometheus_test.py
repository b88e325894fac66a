"""The alerts and the dashboard: they parse, name metrics that a server has, and fire when they should.

Started by testing/prometheus/run, which installs promtool and prometheus. TENSORHUB_BIN names a folder with
tensorhub_server, and perhaps tensorhub_worker and th; tests that need one which is not there are skipped.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

import yaml

from testing.checkpoint_files import write_checkpoint
from testing.started_processes import Processes
from testing.waiting import PATIENCE_S, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "tools" / "prometheus"
ALERTS = PROMETHEUS / "alerts.yml"
ALERTS_TEST = PROMETHEUS / "alerts_test.yml"
CONFIG = PROMETHEUS / "prometheus.yml"
DASHBOARD = ROOT / "tools" / "grafana" / "tensorhub.json"
# A server's own, and those that workers have too.
METRICS_SOURCES = [ROOT / "th" / "server" / "metrics_text.cc", ROOT / "th" / "monitoring" / "prometheus_text.cc"]
COMMANDS = ROOT / "th" / "cli" / "README.md"

# What Prometheus itself has.
OWN_METRICS = {"up", "ALERTS"}
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
# What Grafana puts in the place of its variables.
GRAFANA_VARIABLES = {"$__rate_interval": "5m", "$__range": "3h", "$run": ".*", "$model": ".*"}
SEVERITIES = {"critical", "warning", "info"}
# These have no series before something goes wrong.
ONLY_IN_TROUBLE = {"tensorhub_failures_total", "tensorhub_transports_passed_over_total"}


def promtool(*arguments, text=None) -> str:
    """Its output; fails where promtool does."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * PATIENCE_S,  # all cases take half a minute on a busy machine
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError("promtool %s: status %d\n%s" % (" ".join(map(str, arguments)), done.returncode, done.stdout))
    return done.stdout


def program(name: str) -> str:
    """The path of a program of ours; skips the test without it."""
    folder = os.environ.get("TENSORHUB_BIN")
    if not folder:
        raise unittest.SkipTest("TENSORHUB_BIN names no folder with %s" % name)
    path = pathlib.Path(folder) / name
    if not path.exists():
        raise unittest.SkipTest("there is no %s in TENSORHUB_BIN" % name)
    return str(path.resolve())


# ---- what the files say --------------------------------------------------------------------------------------------


def alerts():
    """The rules of alerts.yml."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard():
    return json.loads(DASHBOARD.read_text())


def without_variables(expression: str) -> str:
    for variable, value in GRAFANA_VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def panels():
    """The panels of the dashboard that are no rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def targets():
    """(panel's title, expression as Prometheus gets it, legend) of every query of a panel."""
    return [
        (panel["title"], without_variables(target["expr"]), target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]


def dashboard_expressions():
    """(where, expression) of every query, those of variables and annotations too."""
    found = [(title, expression) for title, expression, _ in targets()]
    found += [("annotation " + each["name"], without_variables(each["expr"])) for each in dashboard()["annotations"]["list"]]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            if query is None:
                raise AssertionError("not understood: %s" % variable["query"]["query"])
            found.append(("variable " + variable["name"], without_variables(query.group(1))))
    return found


def alert_expressions():
    return [("alert " + rule["alert"], rule["expr"]) for rule in alerts()]


KEYWORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right", "inf", "nan"}


def metrics_of(expression: str):
    """The names of metrics in an expression that parses."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    # A name before a bracket is a function; sums may have their labels, gone now, between the two.
    names = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\s*\(|\w)", bare)
    return {name for name in names if name.lower() not in KEYWORDS}


def metrics_source():
    """The text of all METRICS_SOURCES."""
    return "".join(path.read_text() for path in METRICS_SOURCES)


def families_of_source():
    """{name: type} of every family in the server's source."""
    text = metrics_source()
    called = r'"((?:tensorhub|process)_\w+)"'
    found = dict(re.findall(r'(?:Single|Family)\(\s*%s,\s*"(\w+)"' % called, text))
    # The others are in tables of counters, or are counters whose name is a constant.
    for name in re.findall(called, text):
        if not name.endswith(HISTOGRAM_SUFFIXES):
            found.setdefault(name, "counter")
    return found


def is_of_models(name: str, source: str) -> bool:
    """True unless its samples are of the whole server, without labels or with the software's alone."""
    of_server = r'Single\(\s*"NAME"|HistogramSamples\("NAME", \{\}|"NAME", &RegistryCounters|Sample\("NAME", PrometheusLabels\('
    return not re.search(of_server.replace("NAME", name), source)


def families_of(text: str):
    """{name: type} of what a server answers at /metrics."""
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


def series_names(families):
    """The names under which Prometheus has the samples of these families."""
    names = set()
    for name, kind in families.items():
        names |= {name + suffix for suffix in HISTOGRAM_SUFFIXES} if kind == "histogram" else {name}
    return names


# ---- processes -----------------------------------------------------------------------------------------------------


class Server:
    """A tensorhub_server on ports that the system chose."""

    def __init__(self, processes: Processes) -> None:
        self.process = processes.start(
            "server",
            program("tensorhub_server"),
            "--listen=127.0.0.1:0",
            "--http=127.0.0.1:0",
            "--state-dir=state",
            "--json",
        )
        line = processes.await_text(self.process, r"\{.*\}").group()
        self.address, self.http = json.loads(line)["address"], json.loads(line)["http"]

    def metrics(self) -> str:
        return get("http://%s/metrics" % self.http)


class Prometheus:
    """A Prometheus with our configuration, which is changed in the target and in its intervals alone."""

    INTERVAL = "250ms"

    def __init__(self, processes: Processes, target: str, **shorter_for: str) -> None:
        config, rules = yaml.safe_load(CONFIG.read_text()), yaml.safe_load(ALERTS.read_text())
        config["global"].update(scrape_interval=self.INTERVAL, evaluation_interval=self.INTERVAL)
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            if rule["alert"] in shorter_for:
                rule["for"] = shorter_for[rule["alert"]]
        (processes.folder / CONFIG.name).write_text(yaml.safe_dump(config))
        (processes.folder / ALERTS.name).write_text(yaml.safe_dump(rules))
        process = processes.start(
            "prometheus",
            "prometheus",
            "--config.file=" + CONFIG.name,
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        )
        listening = r'msg="Listening on" address=(127\.0\.0\.1:\d+)'
        self._address = processes.await_text(process, listening).group(1)
        until(self._is_ready, "Prometheus is ready", processes.logs)

    def _is_ready(self) -> bool:
        try:
            get("http://%s/-/ready" % self._address)
        except OSError:
            return False
        return True

    def api(self, path: str, **parameters: str):
        url = "http://%s/api/v1/%s?%s" % (self._address, path, urllib.parse.urlencode(parameters))
        return json.loads(get(url))["data"]

    def query(self, expression: str):
        return self.api("query", query=expression)["result"]

    def rules(self):
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]


def get(url: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
    with direct.open(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


# ---- tests ---------------------------------------------------------------------------------------------------------


def check_expressions(test: unittest.TestCase, expressions) -> None:
    """Each parses, and names metrics alone that the server's source has."""
    rules = [{"record": "query:%d" % i, "expr": expression} for i, (_, expression) in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}, file)
        file.flush()
        promtool("check", "rules", file.name)
    known = series_names(families_of_source()) | OWN_METRICS
    for where, expression in expressions:
        with test.subTest(where):
            names = metrics_of(expression)
            test.assertTrue(names, expression)
            test.assertEqual(set(), names - known, "no such metric in the server's source")


class ExpressionsTest(unittest.TestCase):
    """What the other tests stand on."""

    def test_names_of_metrics_are_found(self):
        expression = 'histogram_quantile(0.9, sum by (le) (rate(a_bucket{b="c d"}[5m]))) > 1e3 and on (run) e unless f / 2'
        self.assertEqual(metrics_of(expression), {"a_bucket", "e", "f"})
        self.assertEqual(metrics_of('sum(rate(x:y{l=~"a}"}[1m])) by (z) or vector(0)'), {"x:y"})

    def test_a_query_that_does_not_parse_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "could not parse expression"):
            check_expressions(self, [("here", "sum(up")])

    def test_families_are_read_from_the_source(self):
        families = families_of_source()
        self.assertEqual(families["tensorhub_workers"], "gauge")
        self.assertEqual(families["tensorhub_update_seconds"], "histogram")
        self.assertEqual(families["tensorhub_stall_seconds_total"], "counter")
        self.assertEqual(families["tensorhub_build_info"], "gauge")
        self.assertEqual(families["process_cpu_seconds_total"], "counter")
        self.assertGreater(len(families), 60)


class AlertsTest(unittest.TestCase):
    def test_promtool_finds_no_fault_in_the_rules(self):
        self.assertIn("%d rules found" % len(alerts()), promtool("check", "rules", ALERTS))

    def test_the_cases_pass(self):
        promtool("test", "rules", ALERTS_TEST)

    def test_a_case_can_fail(self):
        cases = ALERTS_TEST.read_text().replace("rule_files:\n  - ", "rule_files:\n  - %s/" % PROMETHEUS)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(cases.replace("1x8 0x20", "1x8 1x20"))
            file.flush()
            with self.assertRaisesRegex(AssertionError, "TensorHubServerDown"):
                promtool("test", "rules", file.name)

    def test_promtool_finds_no_fault_in_the_configuration(self):
        promtool("check", "config", CONFIG)

    def test_expressions_name_metrics_that_there_are(self):
        check_expressions(self, alert_expressions())

    def test_every_alert_has_a_case_that_fires_and_one_that_does_not(self):
        fires, silent = set(), set()
        for case in yaml.safe_load(ALERTS_TEST.read_text())["tests"]:
            for asked in case["promql_expr_test"]:
                name = re.search(r'alertname="(\w+)"', asked["expr"]).group(1)
                self.assertTrue(case["name"].startswith(name + " "), case["name"])
                (fires if asked["exp_samples"] else silent).add(name)
        names = {rule["alert"] for rule in alerts()}
        self.assertEqual(len(names), len(alerts()), "two alerts have one name")
        self.assertEqual((fires, silent), (names, names))

    def test_a_counter_with_labels_counts_whole_when_it_appears(self):
        source, found = metrics_source(), set()
        for rule in alerts():
            expression = " ".join(rule["expr"].split())
            for name, number, unit in re.findall(r"increase\((\w+)\[(\d+)(\w)\]\)", expression):
                if not is_of_models(name, source):
                    continue
                found.add(name)
                window, window_s = number + unit, int(number) * {"m": 60, "h": 3600}[unit]
                appeared = (
                    "( {0} unless {0} offset {1} and on (job, instance) "
                    "(tensorhub_uptime_seconds offset {1} or tensorhub_uptime_seconds < {2}) ) or increase({0}[{1}])"
                ).format(name, window, window_s)
                with self.subTest(rule["alert"]):
                    self.assertIn(appeared, expression)
        self.assertLessEqual(ONLY_IN_TROUBLE, found)

    def test_every_alert_says_what_happened_and_what_to_do(self):
        for rule in alerts():
            with self.subTest(rule["alert"]):
                self.assertIn(rule["labels"]["severity"], SEVERITIES)
                self.assertEqual(set(rule["annotations"]), {"summary", "description"})
                self.assertRegex(rule["annotations"]["description"], "`th( [a-z]+|`| --)")

    def test_texts_name_labels_that_the_alert_has(self):
        labels = {}
        for case in yaml.safe_load(ALERTS_TEST.read_text())["tests"]:
            for sample in case["promql_expr_test"][0]["exp_samples"]:
                name = re.search(r'alertname="(\w+)"', sample["labels"]).group(1)
                labels.setdefault(name, set()).update(re.findall(r'(\w+)="', sample["labels"]))
        for rule in alerts():
            with self.subTest(rule["alert"]):
                named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
                self.assertEqual(set(), named - labels[rule["alert"]])

    def test_commands_that_texts_name_exist(self):
        known = set(re.findall(r"`th ([a-z]+)", COMMANDS.read_text()))
        for command, _ in self.commands():
            self.assertIn(command, known)

    def test_flags_of_commands_that_texts_name_exist(self):
        th = program("th")
        for command, flags in self.commands():
            with self.subTest(command):
                shown = subprocess.run([th, command, "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
                for flag in flags:
                    self.assertRegex(shown.stdout, r"%s\b" % flag)

    def commands(self):
        """(command, flags) of every `th COMMAND ...` in the texts."""
        texts = " ".join(text for rule in alerts() for text in rule["annotations"].values())
        found = re.findall(r"`th ([a-z]+)([^`]*)`", texts)
        self.assertTrue(found)
        return [(command, re.findall(r"--[a-z-]+", rest)) for command, rest in found]


class DashboardTest(unittest.TestCase):
    def test_expressions_name_metrics_that_there_are(self):
        expressions = dashboard_expressions()
        for where, expression in expressions:
            self.assertNotIn("$", expression, where)
        check_expressions(self, expressions)

    def test_every_panel_has_a_unit_a_text_and_the_chosen_data_source(self):
        for panel in panels():
            with self.subTest(panel["title"]):
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                self.assertTrue(panel["description"].endswith("."))
                for each in [panel, *panel["targets"]]:
                    self.assertEqual(each["datasource"], {"type": "prometheus", "uid": "${datasource}"})

    def test_panels_have_their_own_numbers_and_places(self):
        numbers, taken = [], set()
        for panel in dashboard()["panels"]:
            place = panel["gridPos"]
            numbers.append(panel["id"])
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertNotIn((x, y), taken, panel["title"])
                    taken.add((x, y))
        self.assertEqual(len(numbers), len(set(numbers)))

    def test_queries_of_models_follow_the_variables(self):
        self.assertEqual([each["name"] for each in dashboard()["templating"]["list"]], ["datasource", "run", "model"])
        source = metrics_source()
        families = families_of_source()
        of_models = {name for name in families if is_of_models(name, source)}
        of_server = {"tensorhub_epoch", "tensorhub_build_info", "tensorhub_turn_seconds", "tensorhub_joins_total"}
        self.assertLessEqual({"tensorhub_versions", "tensorhub_update_seconds", "tensorhub_stall_seconds_total"}, of_models)
        self.assertLessEqual(of_server, set(families) - of_models)
        for panel in panels():
            for target in panel["targets"]:
                for name in metrics_of(without_variables(target["expr"])):
                    if re.sub("_(bucket|sum|count)$", "", name) in of_models:
                        self.assertIn('run=~"$run", model=~"$model"', target["expr"], panel["title"])

    def test_the_file_has_two_spaces_of_indent(self):
        self.assertEqual(DASHBOARD.read_text(), json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n")


class ServerTest(unittest.TestCase):
    def setUp(self) -> None:
        program("tensorhub_server")
        self.processes = Processes(self, "prometheus-")
        self.server = Server(self.processes)

    def test_its_metrics_are_good_and_those_of_the_source(self):
        metrics = self.server.metrics()
        self.assertEqual(promtool("check", "metrics", text=metrics), "")
        self.assertEqual(families_of(metrics), families_of_source())

    def test_a_prometheus_scrapes_it_and_all_rules_are_evaluated(self):
        prometheus = Prometheus(self.processes, self.server.http)
        until(lambda: prometheus.query("up == 1"), "the target is up", self.processes.logs)
        target = prometheus.api("targets")["activeTargets"][0]
        self.assertEqual((target["labels"]["job"], target["lastError"]), ("tensorhub", ""))

        def healths():
            return {rule["name"]: rule["health"] for rule in prometheus.rules()}

        until(lambda: "unknown" not in healths().values(), "all rules are evaluated", self.processes.logs)
        self.assertEqual(healths(), {rule["alert"]: "ok" for rule in alerts()})

    def test_the_down_alert_fires(self):
        prometheus = Prometheus(self.processes, self.server.http, TensorHubServerDown="1s")
        until(lambda: prometheus.query("up == 1"), "the target is up", self.processes.logs)
        until(lambda: prometheus.query("tensorhub_epoch"), "its metrics are there", self.processes.logs)

        def down():
            return [each for each in prometheus.api("alerts")["alerts"] if each["labels"]["alertname"] == "TensorHubServerDown"]

        self.assertEqual(down(), [])
        self.server.process.send_signal(signal.SIGKILL)
        alert = until(lambda: [each for each in down() if each["state"] == "firing"], "the alert fires", self.processes.logs)[0]
        self.assertEqual(alert["labels"]["severity"], "critical")
        self.assertIn(self.server.http, alert["annotations"]["summary"])
        self.assertNotIn("{{", alert["annotations"]["description"])

    def test_every_query_of_the_dashboard_has_an_answer_once_a_version_has_moved(self):
        worker = program("tensorhub_worker")
        write_checkpoint(self.processes.folder / "checkpoint")
        connection = ["--server", self.server.address]
        publisher = self.processes.start("publisher", worker, "publish", "--dir", "checkpoint", "--label", "step-1", *connection)
        self.processes.await_text(publisher, "published")
        follower = self.processes.start("follower", worker, "follow", "--group", "rollout-1", *connection)
        self.processes.await_text(follower, "version=step-1")
        prometheus = Prometheus(self.processes, self.server.http)
        moved = "count_over_time(tensorhub_model_moves_total[1h]) > 4 and tensorhub_model_moves_total > 0"
        until(lambda: prometheus.query(moved), "the update was scraped", self.processes.logs)
        for title, expression, legend in targets():
            with self.subTest(title):
                answer = prometheus.query(expression)
                if metrics_of(expression) & ONLY_IN_TROUBLE and not answer:
                    continue
                self.assertTrue(answer, expression)
                for label in re.findall(r"\{\{(\w+)\}\}", legend):
                    self.assertIn(label, answer[0]["metric"], expression)


if __name__ == "__main__":
    unittest.main()
