"""The units for systemd and the manifests for Kubernetes: what their own tools say of them, and what TensorHub needs.

Started by testing/deployment/run, which installs what this imports and names in TENSORHUB_BIN the folder with
tensorhub_server and tensorhub_worker. TENSORHUB_PACKAGES names a folder that tools/package has written.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import kubernetes_validate
import yaml

from testing.checkpoint_files import write_checkpoint
from testing.started_processes import Processes
from testing.waiting import PATIENCE_S, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SYSTEMD = ROOT / "tools" / "systemd"
KUBERNETES = ROOT / "tools" / "kubernetes"
PACKAGES = ROOT / "tools" / "packages"
SERVER_UNIT = SYSTEMD / "tensorhub-server.service"
FOLLOW_UNIT = SYSTEMD / "tensorhub-follow@.service"
# Beside each unit the example of its settings.
UNITS = {SERVER_UNIT: SYSTEMD / "tensorhub-server.env", FOLLOW_UNIT: SYSTEMD / "tensorhub-follow.env"}
# `systemd-analyze security` counts from 0 (nothing can be reached) to 100.
MOST_EXPOSURE = {SERVER_UNIT: 20, FOLLOW_UNIT: 30}
# What would keep readers of this host from the memory of their sources.
SEPARATING = ["PrivateUsers", "PrivateNetwork", "PrivatePIDs", "PrivateIPC", "ProtectProc", "ProcSubset", "AmbientCapabilities"]
# What would keep a follower from adapters and GPUs.
DEVICE_HIDING = ["PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"]
INSTANCE = "rollout"
SCHEMAS = ["1.28", "1.32", "1.37"]
MANIFESTS = ["server.yaml", "follower.yaml"]
# From the end of the notice until the process is gone.
LEAVING_S = 30

def program(name: str) -> str:
    """The path of a program of ours."""
    return str((pathlib.Path(os.environ["TENSORHUB_BIN"]) / name).resolve())


def own_program(command):
    """The command line with our program in the place of the installed one."""
    return [program(pathlib.Path(command[0]).name), *command[1:]]


def seconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(s|min|m)", text).groups()
    return int(number) * (1 if unit == "s" else 60)


def flag(command, name: str) -> str:
    """The value of --name=value."""
    (value,) = [each.split("=", 1)[1] for each in command if each.startswith("--%s=" % name)]
    return value


def with_flag(command, name: str, value: str):
    return ["--%s=%s" % (name, value) if each.startswith("--%s=" % name) else each for each in command]


def run_server_and_follower(test: unittest.TestCase, server_command, follower_command, **environment: str) -> None:
    """They start, on ports and in folders of the test, the follower gets a version, and they end when they are told to."""
    processes = Processes(test, "deployment-")
    for name in ("listen", "http"):
        server_command = with_flag(server_command, name, "127.0.0.1:0")
    for name in ("state-dir", "event-log"):
        server_command = with_flag(server_command, name, pathlib.Path(flag(server_command, name)).name)
    server = processes.start("server", *own_program(server_command))
    address = processes.await_text(server, r"listening on ([\d.:]+)").group(1)
    environment = dict(environment, TH_SERVER=address)
    follower_command = with_flag(follower_command, "preempt-grace", "1s")
    follower = processes.start("follower", *own_program(follower_command), **environment)
    model = "run=%s model=%s" % (environment["TH_RUN"], environment["TH_MODEL"])
    group = flag(follower_command, "group")
    processes.await_text(follower, re.escape("follows %s as group %s" % (model, group)))
    # It says that before it has reached a server; a version comes from none but the one that the publisher reaches too.
    write_checkpoint(processes.folder / "checkpoint")
    publish = [program("tensorhub_worker"), "publish", "--dir=checkpoint", "--label=step-1"]
    publisher = processes.start("publisher", *publish, **environment)
    processes.await_text(publisher, re.escape("published %s version=" % model))
    processes.await_text(follower, r"version=\S*step-1")
    events = processes.folder / flag(server_command, "event-log")
    until(lambda: events.exists() and '"kind":"published"' in events.read_text(), "the event is written", processes.logs)
    processes.end(follower)
    processes.end(publisher)
    processes.end(server)


def unknown_flags(command):
    """The flags of `[program, flag...]`, or with a subcommand before the flags, that its --help does not show."""
    words = [word for word in command[1:] if not word.startswith("-")]
    shown = subprocess.run(
        [own_program(command)[0], *words, "--help"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout
    flags = [each.split("=")[0] for each in command[1:] if each.startswith("-")]
    return [each for each in flags if not re.search(r"(?m)^ +%s(?![\w-])" % re.escape(each), shown)]


# ---- systemd -------------------------------------------------------------------------------------------------------


def settings(unit: pathlib.Path):
    """{key: [value...]} of all sections."""
    found = {}
    for line in unit.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def variables(text: str):
    """{name: value} of NAME=VALUE lines, those behind a # too."""
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))


def environment_of(unit: pathlib.Path):
    """What the unit sets by itself."""
    return dict(each.split("=", 1) for line in settings(unit)["Environment"] for each in line.split())


def command_line(unit: pathlib.Path, own: dict):
    """ExecStart as systemd would run it, with the variables `own`, for the instance INSTANCE."""
    values = dict(environment_of(unit), **own)
    (line,) = settings(unit)["ExecStart"]
    words = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$\w+", word):
            words += values[word[1:]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda match: values[match.group(1)], word))
    places = {"%i": INSTANCE, "%l": "host-1", "%S": "/var/lib", "%L": "/var/log"}
    return [re.sub("%.", lambda match: places[match.group()], word) for word in words]


class SystemdTest(unittest.TestCase):
    def analyze(self, verb: str, unit: pathlib.Path, text: str, *options: str):
        """The status of systemd-analyze, and what it says of a unit whose program is there."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="units-"))
        self.addCleanup(shutil.rmtree, folder)
        copy = folder / unit.name.replace("@", "@" + INSTANCE)
        copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
        done = subprocess.run(
            ["systemd-analyze", verb, *options, str(copy)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout

    def security(self, unit: pathlib.Path, text: str):
        """The status, 0 where the exposure is within its limit, and the report."""
        options = ["--offline=true", "--no-pager", "--threshold=%d" % MOST_EXPOSURE[unit]]
        status, report = self.analyze("security", unit, text, *options)
        self.assertIn("Overall exposure level", report)
        return status, report

    def test_systemd_finds_no_fault_in_the_units(self):
        for unit in UNITS:
            self.assertEqual(self.analyze("verify", unit, unit.read_text(), "--man=no"), (0, ""), unit.name)

    def test_a_fault_is_found(self):
        wrong = SERVER_UNIT.read_text().replace("TimeoutStopSec=30s", "TimeoutStopSecs=30s")
        self.assertIn("TimeoutStopSecs", self.analyze("verify", SERVER_UNIT, wrong, "--man=no")[1])

    def test_the_services_are_shut_in(self):
        for unit in UNITS:
            status, report = self.security(unit, unit.read_text())
            self.assertEqual(status, 0, report)

    def test_an_open_service_is_noticed(self):
        for unit in UNITS:
            lines = [line for line in unit.read_text().splitlines() if not re.match("Protect|Restrict[A-Z]|System", line)]
            self.assertNotEqual(self.security(unit, "\n".join(lines))[0], 0, unit.name)

    def test_units_start_again_and_end_by_sigterm(self):
        for unit in UNITS:
            found = settings(unit)
            self.assertEqual(found["Restart"] + found["KillSignal"] + found["KillMode"], ["on-failure", "SIGTERM", "mixed"])
            self.assertEqual(found["DynamicUser"], ["yes"])
            # Otherwise it would never give up.
            trying = seconds(found["RestartSec"][0]) * int(found["StartLimitBurst"][0])
            self.assertLess(trying, seconds(found["StartLimitIntervalSec"][0]))

    def test_a_follower_has_time_for_its_notice(self):
        grace = seconds(flag(command_line(FOLLOW_UNIT, {}), "preempt-grace"))
        self.assertGreaterEqual(seconds(settings(FOLLOW_UNIT)["TimeoutStopSec"][0]), grace + LEAVING_S)

    def test_a_follower_may_read_the_memory_of_its_peers_and_use_devices(self):
        found = settings(FOLLOW_UNIT)
        self.assertEqual([], [key for key in SEPARATING + DEVICE_HIDING if key in found])
        self.assertEqual(found["LimitMEMLOCK"], ["infinity"])
        self.assertLessEqual({"process_vm_readv", "pidfd_open", "pidfd_getfd"}, set(" ".join(found["SystemCallFilter"]).split()))

    def test_the_examples_of_settings_have_what_the_units_read(self):
        for unit, example in UNITS.items():
            read = set(re.findall(r"\$\{?(\w+)", settings(unit)["ExecStart"][0]))
            self.assertEqual(read, set(environment_of(unit)), unit.name)
            own = variables(example.read_text())
            self.assertEqual({name for name in own if not name.startswith("TH_")}, read, example.name)

    def test_flags_of_units_and_examples_exist(self):
        for unit, example in UNITS.items():
            self.assertEqual(unknown_flags(command_line(unit, variables(example.read_text()))), [], unit.name)

    def test_a_flag_that_does_not_exist_is_noticed(self):
        own = {"TENSORHUB_SERVER_OPTIONS": "--log-levels=info"}
        self.assertEqual(unknown_flags(command_line(SERVER_UNIT, own)), ["--log-levels"])

    def test_server_and_follower_run_as_the_units_say(self):
        server = command_line(SERVER_UNIT, variables(UNITS[SERVER_UNIT].read_text()))
        run_server_and_follower(self, server, command_line(FOLLOW_UNIT, {}), TH_RUN="r1", TH_MODEL="qwen3")


class SystemdMachine:
    """systemd as the first process of namespaces that end with the test, with our units and programs in it."""

    SCRIPT = ROOT / "testing" / "deployment" / "systemd_machine"

    def __init__(self, test: unittest.TestCase) -> None:
        self.processes = Processes(test, "systemd-")
        self.folder = self.processes.folder
        for name in ("etc/systemd/system", "etc/tensorhub", "usr/bin"):
            (self.folder / name).mkdir(parents=True)
        for unit in UNITS:
            shutil.copy(unit, self.folder / "etc/systemd/system")
        for name in ("tensorhub_server", "tensorhub_worker"):
            shutil.copy(program(name), self.folder / "usr/bin")
        shutil.copy(UNITS[SERVER_UNIT], self.folder / "etc/tensorhub")

    def boot(self) -> None:
        machine = self.processes.start("machine", str(self.SCRIPT), "boot", str(self.folder))

        def is_up():
            if machine.poll() is not None:
                raise AssertionError("systemd did not start\n%s" % self.processes.logs())
            return self.run("systemctl", "is-system-running", may_fail=True).strip() == "running"

        until(is_up, "systemd is up", self.explain)
        # Killed, it would leave its namespaces behind.
        self.processes.end_at_cleanup(machine)

    def run(self, *command: str, may_fail: bool = False) -> str:
        """Its output."""
        done = subprocess.run(
            [str(self.SCRIPT), "run", str(self.folder), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0 and not may_fail:
            raise AssertionError("%s: %s\n%s" % (" ".join(command), done.stderr, self.explain()))
        return done.stdout

    def state(self, unit: str):
        """Properties of a unit, as systemd has them."""
        names = "--property=ActiveState,SubState,Result,ExecMainStatus,NRestarts"
        return dict(line.split("=", 1) for line in self.run("systemctl", "show", names, unit).splitlines())

    def await_state(self, unit: str, **wanted: str) -> None:
        until(lambda: wanted.items() <= self.state(unit).items(), "%s is %s" % (unit, wanted), self.explain)

    def get(self, path: str) -> str:
        """The answer of the server's HTTP port; empty while there is none."""
        ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
        return self.run("/usr/bin/python3", "-c", ask, "http://127.0.0.1:7078" + path, may_fail=True)

    def has_file(self, pattern: str) -> bool:
        return bool(self.run("/bin/sh", "-c", "ls -d %s" % pattern, may_fail=True))

    def explain(self) -> str:
        return self.run("journalctl", "--no-pager", "--lines=60", may_fail=True)


class RunningSystemdTest(unittest.TestCase):
    FOLLOWERS = [INSTANCE, "second"]

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("systemd in namespaces needs root")
        self.machine = SystemdMachine(self)
        own = "TH_SERVER=127.0.0.1:7077\nTH_RUN=r1\nTH_MODEL=qwen3\n"
        for name in self.FOLLOWERS:
            into = "TENSORHUB_FOLLOW_OPTIONS=--keep=2 --into=/var/lib/tensorhub-follow/%s\n" % name
            (self.machine.folder / "etc/tensorhub" / (name + ".env")).write_text(own + into)
        write_checkpoint(self.machine.folder / "usr/checkpoint")
        self.machine.boot()

    def publish(self, label: str) -> None:
        """Starts a publisher in the unit `publisher`, which must not run yet."""
        self.machine.run(
            "systemd-run",
            "--unit=publisher",
            "--property=Environment=TH_SERVER=127.0.0.1:7077 TH_RUN=r1 TH_MODEL=qwen3",
            "/usr/bin/tensorhub_worker",
            "publish",
            "--dir=/usr/checkpoint",
            "--label=" + label,
        )

    def await_version(self, follower: str, label: str) -> None:
        files = "/var/lib/tensorhub-follow/%s/*%s*/model.safetensors" % (follower, label)
        until(lambda: self.machine.has_file(files), "%s has %s" % (follower, label), self.machine.explain)

    def test_server_and_followers_start_start_again_and_stop(self):
        machine = self.machine
        server, first, second = "tensorhub-server", *("tensorhub-follow@" + name for name in self.FOLLOWERS)
        machine.run("systemctl", "start", server, first)
        until(lambda: machine.get("/healthz"), "the server is healthy", machine.explain)
        self.publish("step-1")
        self.await_version(INSTANCE, "step-1")
        self.assertIn('"kind":"published"', machine.run("cat", "/var/log/tensorhub/events"))

        # A follower alone has the version now. Of its user and host, another one reads its memory.
        machine.run("systemctl", "stop", "publisher")
        machine.run("systemctl", "start", second)
        self.await_version("second", "step-1")
        self.assertRegex(machine.get("/metrics"), r'tensorhub_received_bytes_total\{[^}]*transport="same_host"[^}]*\} [1-9]')

        machine.run("systemctl", "kill", "--signal=SIGKILL", server)
        machine.await_state(server, ActiveState="active", NRestarts="1")
        self.publish("step-2")
        for name in self.FOLLOWERS:
            self.await_version(name, "step-2")
        self.assertEqual(machine.state(first)["NRestarts"], "0")

        # Each follower keeps serving until its notice is over.
        machine.run("systemctl", "stop", first, second)
        machine.run("systemctl", "stop", server)
        for unit in (first, second, server):
            found = machine.state(unit)
            self.assertEqual((found["ActiveState"], found["Result"], found["ExecMainStatus"]), ("inactive", "success", "0"))

    def test_a_wrong_flag_is_not_tried_again(self):
        self.machine.run("/bin/sh", "-c", "echo TENSORHUB_SERVER_OPTIONS=--nonsense >>/etc/tensorhub/tensorhub-server.env")
        self.machine.run("systemctl", "start", "tensorhub-server", may_fail=True)
        self.machine.await_state("tensorhub-server", ActiveState="failed", ExecMainStatus="2", NRestarts="0")
        self.assertIn("nonsense", self.machine.explain())


# ---- Kubernetes ----------------------------------------------------------------------------------------------------


def manifests(name: str):
    """{kind: manifest} of a file."""
    return {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / name).read_text())}


def pod(name: str):
    return manifests(name)["StatefulSet"]["spec"]["template"]["spec"]


def container(name: str):
    (only,) = pod(name)["containers"]
    return only


def container_command(name: str):
    """With $(POD_NAME) replaced as Kubernetes does."""
    one = container(name)
    return [word.replace("$(POD_NAME)", "tensorhub-follower-0") for word in one["command"] + one["args"]]


def container_environment(name: str):
    """The variables whose values stand in the manifest."""
    return {each["name"]: each["value"] for each in container(name)["env"] if "value" in each}


class KubernetesTest(unittest.TestCase):
    def test_manifests_fit_the_schema(self):
        for name in MANIFESTS:
            for manifest in manifests(name).values():
                for version in SCHEMAS:
                    kubernetes_validate.validate(manifest, version, strict=True)

    def test_what_does_not_fit_the_schema_is_refused(self):
        wrong = manifests("server.yaml")["StatefulSet"]
        wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, SCHEMAS[-1], strict=True)

    def test_what_stands_in_comments_fits_the_schema_too(self):
        text = (KUBERNETES / "follower.yaml").read_text()
        opened, count = re.subn(r"(?m)^( +)# ( *(?:- )?(?:\w+:|IPC_LOCK)(?: [\w/{}]+)?)$", r"\1\2", text)
        self.assertEqual(count, 11, opened)
        manifest = {each["kind"]: each for each in yaml.safe_load_all(opened)}["StatefulSet"]
        kubernetes_validate.validate(manifest, SCHEMAS[-1], strict=True)
        spec = manifest["spec"]["template"]["spec"]
        one = spec["containers"][0]
        self.assertEqual((spec["hostNetwork"], spec["hostPID"]), (True, True))
        self.assertEqual(one["securityContext"]["capabilities"], {"drop": ["ALL"], "add": ["IPC_LOCK"]})
        self.assertEqual(one["volumeMounts"][0]["name"], spec["volumes"][0]["name"])

    def test_services_find_their_pods(self):
        for name in MANIFESTS:
            found = manifests(name)
            labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(found["StatefulSet"]["spec"]["selector"]["matchLabels"], labels)
            self.assertEqual(found["Service"]["spec"]["selector"], labels)
            self.assertEqual(found["StatefulSet"]["spec"]["serviceName"], found["Service"]["metadata"]["name"])

    def test_the_monitor_finds_the_server_and_gives_the_job_that_the_alerts_select(self):
        # The schema of this kind is the Prometheus operator's, which kubernetes-validate does not have.
        monitor = manifests("podmonitor.yaml")["PodMonitor"]
        self.assertEqual(set(monitor), {"apiVersion", "kind", "metadata", "spec"})
        self.assertEqual(monitor["apiVersion"], "monitoring.coreos.com/v1")
        self.assertEqual(set(monitor["spec"]), {"selector", "podMetricsEndpoints"})
        labels = manifests("server.yaml")["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(monitor["spec"]["selector"], {"matchLabels": labels})
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        self.assertEqual(set(endpoint), {"port", "path", "interval", "relabelings"})
        self.assertEqual((endpoint["port"], endpoint["path"]), ("http", "/metrics"))
        job, instance = endpoint["relabelings"]
        self.assertEqual(job, {"targetLabel": "job", "replacement": "tensorhub"})
        self.assertIn('up{job="%s"}' % job["replacement"], (ROOT / "tools" / "prometheus" / "alerts.yml").read_text())
        self.assertEqual(instance, {"targetLabel": "instance", "sourceLabels": ["__meta_kubernetes_pod_name"]})

    def test_ports_are_those_that_the_server_listens_on(self):
        command = container_command("server.yaml")
        ports = {port["name"]: port["containerPort"] for port in container("server.yaml")["ports"]}
        self.assertEqual(flag(command, "listen"), "0.0.0.0:%d" % ports["grpc"])
        self.assertEqual(flag(command, "http"), "0.0.0.0:%d" % ports["http"])
        service = manifests("server.yaml")["Service"]
        self.assertEqual({each["targetPort"]: each["port"] for each in service["spec"]["ports"]}, ports)
        address = "%s:%d" % (service["metadata"]["name"], ports["grpc"])
        self.assertEqual(container_environment("follower.yaml")["TH_SERVER"], address)

    def test_every_probe_asks_for_health(self):
        # A server that has no more files for connections is live: a restart would drop those that it has. That may be
        # so from its start on, as its workers come back at once.
        for probe, path in {"startupProbe": "/livez", "readinessProbe": "/healthz", "livenessProbe": "/livez"}.items():
            self.assertEqual(container("server.yaml")[probe]["httpGet"], {"path": path, "port": "http"})

    def test_there_is_one_server_and_its_state_is_on_a_volume(self):
        spec = manifests("server.yaml")["StatefulSet"]["spec"]
        self.assertEqual(spec["replicas"], 1)
        (claim,) = spec["volumeClaimTemplates"]
        (mount,) = container("server.yaml")["volumeMounts"]
        self.assertEqual(mount["name"], claim["metadata"]["name"])
        for name in ("state-dir", "event-log"):
            self.assertTrue(flag(container_command("server.yaml"), name).startswith(mount["mountPath"] + "/"))

    def test_a_follower_has_time_for_its_notice(self):
        grace = seconds(flag(container_command("follower.yaml"), "preempt-grace"))
        self.assertGreaterEqual(pod("follower.yaml")["terminationGracePeriodSeconds"], grace + LEAVING_S)

    def test_pods_run_without_rights(self):
        (user,) = re.findall(r"(?m)^USER (\d+):\d+$", (KUBERNETES / "Dockerfile").read_text())
        for name in MANIFESTS:
            whole, one = pod(name)["securityContext"], container(name)["securityContext"]
            self.assertEqual((whole["runAsNonRoot"], whole["runAsUser"]), (True, int(user)))
            self.assertEqual((one["allowPrivilegeEscalation"], one["readOnlyRootFilesystem"]), (False, True))
            self.assertEqual(one["capabilities"], {"drop": ["ALL"]})

    def test_the_image_is_named_by_its_variable(self):
        for name in MANIFESTS:
            self.assertEqual(container(name)["image"], "${IMAGE}")

    def test_the_image_is_made_of_the_package_that_is_built(self):
        (pattern,) = re.findall(r"/packages/(\S+\.deb)", (KUBERNETES / "Dockerfile").read_text())
        self.assertIn('DEB = "tensorhub_%s_amd64.deb" % VERSION', (PACKAGES / "BUILD.bazel").read_text())
        version = re.search(r'VERSION = "(.*)"', (PACKAGES / "version.bzl").read_text()).group(1)
        self.assertTrue(pathlib.PurePath("tensorhub_%s_amd64.deb" % version).match(pattern))
        commands = re.search(r"COMMANDS = (\[.*\])", (PACKAGES / "make_installation.py").read_text())
        for name in MANIFESTS:
            self.assertIn(container(name)["command"][0], json.loads(commands.group(1)))

    def test_the_image_runs(self):
        packages = os.environ.get("TENSORHUB_PACKAGES")
        if not packages:
            self.skipTest("TENSORHUB_PACKAGES names no folder that tools/package has written")
        if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            self.skipTest("no Docker runs here")
        image = "tensorhub-deployment-test"
        subprocess.run(["docker", "build", "--tag", image, "--file", str(KUBERNETES / "Dockerfile"), packages], check=True)
        self.addCleanup(subprocess.run, ["docker", "image", "rm", image], check=False)
        for name in MANIFESTS:
            command = container(name)["command"][0]
            run = ["docker", "run", "--rm", "--read-only", "--cap-drop=ALL", image, command, "--version"]
            self.assertIn(command, subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    def test_flags_of_manifests_exist(self):
        for name in MANIFESTS:
            self.assertEqual(unknown_flags(container_command(name)), [], name)

    def test_server_and_follower_run_as_the_manifests_say(self):
        values = container_environment("follower.yaml")
        run_server_and_follower(self, container_command("server.yaml"), container_command("follower.yaml"), **values)


if __name__ == "__main__":
    unittest.main()
