"""What tools/package builds, installed into fresh roots of Debian's releases and into every CPython of this machine.

Started by testing/packages/run, as root in namespaces of its own. TENSORHUB_PACKAGES is the folder of the packages and of
other_abi.so; in TENSORHUB_ROOTS a root is made for each release.
"""

import glob
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from testing.started_processes import Processes

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = pathlib.Path(os.environ["TENSORHUB_PACKAGES"])
ROOTS = pathlib.Path(os.environ["TENSORHUB_ROOTS"])
(WHEEL,) = PACKAGES.glob("*.whl")
(TARBALL,) = PACKAGES.glob("*.tar.gz")
(DEB,) = PACKAGES.glob("*.deb")
PYTHON_TEST = [ROOT / "th/python/tensorhub_test.py", ROOT / "th/python/server_test_case.py"]
EXAMPLES = [ROOT / "examples" / name for name in ("trainer.py", "rollout.py", "trainer.c", "rollout.c")]
INSTALL_S = 900  # a slow mirror
RUN_S = 300
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
DEMO = ["demo", "--synthetic", "llm", "--bytes", "16MiB", "--rollouts", "2", "--rate", "20MB/s"]
CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(example C)
find_package(TensorHub 0.1 REQUIRED)
foreach(program trainer rollout)
  add_executable(${program} /given/${program}.c)
  target_link_libraries(${program} TensorHub::tensorhub)
endforeach()
"""
# debootstrap knows each release by the script of an older one that installs it likewise.
SCRIPTS = {"bullseye": "bullseye", "bookworm": "bookworm", "trixie": "sid", "forky": "sid"}


def run(*command, timeout=RUN_S, **options):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout, **options)


def make_root(release: str) -> pathlib.Path:
    """The release's minimal root: made once in a run, and written by nobody."""
    folder = ROOTS / release
    if not folder.exists():
        out = run("debootstrap", "--variant=minbase", release, folder, "", SCRIPTS[release], timeout=INSTALL_S)
        if out.returncode != 0:
            raise AssertionError("debootstrap %s: status %d\n%s" % (release, out.returncode, out.stdout[-3000:]))
    return folder


class ReleaseTestCase(unittest.TestCase):
    """Each test has the release's root for itself: what it writes is gone afterwards. The packages and the examples are in /given."""

    release: str

    def setUp(self) -> None:
        lower = make_root(self.release)
        layers = pathlib.Path(tempfile.mkdtemp(dir=ROOTS))
        self.addCleanup(layers.rmdir)
        self.mount("-t", "tmpfs", "tmpfs", layers)
        for name in ("written", "work", "root"):
            (layers / name).mkdir()
        self.root = layers / "root"
        self.mount("-t", "overlay", "overlay", "-o", "lowerdir=%s,upperdir=%s/written,workdir=%s/work" % (lower, layers, layers), self.root)
        self.mount("-t", "proc", "proc", self.root / "proc")
        self.mount("--rbind", "/dev", self.root / "dev")
        given = self.root / "given"
        given.mkdir()
        for file in [WHEEL, TARBALL, DEB, PACKAGES / "other_abi.so", *PYTHON_TEST, *EXAMPLES]:
            shutil.copy(file, given)

    def mount(self, *arguments) -> None:
        run("mount", *arguments).check_returncode()
        self.addCleanup(run, "umount", "--recursive", "--lazy", arguments[-1])

    def inside(self, *command):
        """The command line as it is started from outside of the root."""
        return ["env", "-i", *("%s=%s" % item for item in CLEAN.items()), "chroot", self.root, *command]

    def do(self, *command, status=0, timeout=RUN_S) -> str:
        """What the command prints in the root, where it ends with that status."""
        out = run(*self.inside(*command), timeout=timeout)
        self.assertEqual(out.returncode, status, "%s: %s" % (" ".join(map(str, command)), out.stdout[-5000:]))
        return out.stdout

    def install(self, *packages) -> None:
        # A mirror may have an old picture of the release that is still being made.
        self.do("apt-get", "-qq", "-o", "Acquire::Check-Valid-Until=false", "update", timeout=INSTALL_S)
        self.do("apt-get", "-qq", "-y", "--no-install-recommends", "install", *packages, timeout=INSTALL_S)

    def unpack(self) -> str:
        """The folder of the tarball, unpacked."""
        self.do("tar", "-xzf", "/given/" + TARBALL.name, "-C", "/opt")
        return "/opt/" + next((self.root / "opt").iterdir()).name

    def check_programs(self, folder: str) -> None:
        for program in ("th", "tensorhub_server", "tensorhub_worker"):
            self.assertRegex(self.do(folder + "/" + program, "--version"), "^%s " % program)
        self.assertIn("GOOD", self.do(folder + "/th", *DEMO))

    def check_example(self, server, trainer, rollout) -> None:
        """A trainer publishes two versions, and a rollout reads both."""
        processes = Processes(self, "packages-")
        serving = processes.start("server", *self.inside(*server, "--listen=127.0.0.1:0", "--state-dir=/state"))
        address = processes.await_text(serving, r"listening on ([\d.:]+)").group(1)
        training = processes.start("trainer", *self.inside(*trainer, address), stdin=subprocess.PIPE)
        rolling = processes.start("rollout", *self.inside(*rollout, address, "rollout-1"))
        for step in (1, 2):
            processes.await_text(training, "published %d" % step)
            processes.await_text(rolling, "version .*: every weight is %d" % step)
            training.stdin.write(b"\n")
            training.stdin.flush()
        training.stdin.close()
        self.assertEqual([rolling.wait(timeout=RUN_S), training.wait(timeout=RUN_S)], [0, 0], processes.logs())


class InstalledTests:
    """The tests of a release that is new enough."""

    def test_the_debian_package(self):
        self.do("dpkg", "-i", "/given/" + DEB.name)
        self.check_programs("/usr/bin")

    def test_the_tarball(self):
        self.check_programs(self.unpack() + "/bin")

    def test_the_wheel(self):
        self.install("python3", "python3-venv")
        self.do("sh", "-c", "! command -v cc && ! command -v gcc")
        self.do("python3", "-m", "venv", "/venv")
        self.do("/venv/bin/pip", "install", "--no-index", "/given/" + WHEEL.name)
        self.check_programs("/venv/bin")
        self.check_example(["/venv/bin/tensorhub_server"], ["/venv/bin/python", "/given/trainer.py"], ["/venv/bin/python", "/given/rollout.py"])
        package = self.do("/venv/bin/python", "-c", "import os, tensorhub; print(os.path.dirname(tensorhub.__file__))").strip()
        self.do("/venv/bin/python", "/given/tensorhub_test.py", package + "/libtensorhub.so", package + "/bin/tensorhub_server",
                "/given/other_abi.so")

    def test_a_c_program_with_pkg_config(self):
        self.install("gcc", "libc6-dev", "pkg-config")
        self.do("dpkg", "-i", "/given/" + DEB.name)
        for program in ("trainer", "rollout"):
            self.do("sh", "-c", "gcc -Wall -Werror -o /{0} /given/{0}.c $(pkg-config --cflags --libs tensorhub)".format(program))
        self.check_example(["/usr/bin/tensorhub_server"], ["/trainer"], ["/rollout"])

    def test_a_c_program_with_cmake(self):
        self.install("gcc", "libc6-dev", "cmake", "make")
        prefix = self.unpack()
        (self.root / "given/CMakeLists.txt").write_text(CMAKE_PROJECT)
        self.do("cmake", "-S", "/given", "-B", "/built", "-DCMAKE_PREFIX_PATH=" + prefix)
        self.do("cmake", "--build", "/built")
        self.check_example([prefix + "/bin/tensorhub_server"], ["/built/trainer"], ["/built/rollout"])


class BookwormTest(InstalledTests, ReleaseTestCase):
    """Debian 12: glibc 2.36, CPython 3.11."""

    release = "bookworm"


class TrixieTest(InstalledTests, ReleaseTestCase):
    """Debian 13: glibc 2.41, CPython 3.13."""

    release = "trixie"


class ForkyTest(InstalledTests, ReleaseTestCase):
    """Debian 14, as far as it is there: its newer glibc and CPython."""

    release = "forky"


class BullseyeTest(ReleaseTestCase):
    """Debian 11 has glibc 2.31, which is too old: whoever tries is told so."""

    release = "bullseye"

    def test_dpkg_names_the_glibc_that_is_needed(self):
        self.assertIn("libc6 (>= 2.34)", self.do("dpkg", "-i", "/given/" + DEB.name, status=1))

    def test_the_programs_name_the_glibc_that_is_needed(self):
        self.assertIn("`GLIBC_2.34' not found", self.do(self.unpack() + "/bin/th", status=1))

    def test_pip_refuses_the_wheel(self):
        self.install("python3", "python3-venv")
        self.do("python3", "-m", "venv", "/venv")
        self.assertIn("not a supported wheel on this platform",
                      self.do("/venv/bin/pip", "install", "--no-index", "/given/" + WHEEL.name, status=1))


def version_of(python: str) -> str:
    """As in "3.13" or, free-threaded, "3.13t"; "" for what is no CPython."""
    say = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2] + sys.abiflags)"
    try:
        name, _, version = run(python, "-c", say).stdout.strip().partition(" ")
    except OSError:
        return ""
    return version if name == "cpython" else ""


def interpreters():
    """{version: path} of the CPythons of this machine, of each version the first that is found."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = os.environ.get("TENSORHUB_PYTHONS", "").split(":") + ["/usr/bin/python3"] + glob.glob(pyenv + "/versions/*/bin/python3")
    candidates += [path for folder in os.environ["PATH"].split(":") for path in glob.glob(folder + "/python3.*")]
    found = {}
    for path in filter(os.path.isfile, candidates):
        found.setdefault(version_of(path), path)
    return found


class PythonsTest(unittest.TestCase):
    """The package's own tests, under the wheel as it is installed."""

    VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t"]

    @classmethod
    def setUpClass(cls):
        cls.found = interpreters()

    def check(self, python: str, library=None, **environment: str) -> None:
        """Runs the tests with the wheel's library or another one."""
        with tempfile.TemporaryDirectory() as folder:
            # Without pip of its own, which some distributions leave out.
            run(python, "-m", "venv", "--without-pip", folder + "/venv").check_returncode()
            python = folder + "/venv/bin/python"
            site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
            out = run("/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-index", "--root-user-action=ignore", "--target", site, WHEEL)
            self.assertEqual(out.returncode, 0, out.stdout)
            for file in PYTHON_TEST:
                shutil.copy(file, folder)
            package = site + "/tensorhub"
            out = run(python, folder + "/tensorhub_test.py", library or package + "/libtensorhub.so", package + "/bin/tensorhub_server",
                      PACKAGES / "other_abi.so", env=dict(os.environ, **environment))
            self.assertEqual(out.returncode, 0, out.stdout[-5000:])

    def test_with_the_library_under_address_sanitizer(self):
        # Python's memory comes from malloc, so that its use after it is freed is seen; what Python keeps to its end is no leak.
        runtimes = ["/usr/lib/x86_64-linux-gnu/" + name for name in ("libasan.so.8", "libubsan.so.1")]
        self.check("/usr/bin/python3", PACKAGES / "libtensorhub_asan.so", LD_PRELOAD=" ".join(runtimes), ASAN_OPTIONS="detect_leaks=0",
                   PYTHONMALLOC="malloc")


def add_tests() -> None:
    for version in PythonsTest.VERSIONS:
        def test(self, version=version):
            if version not in self.found:
                self.skipTest("there is no CPython %s on this machine" % version)
            self.check(self.found[version])
        setattr(PythonsTest, "test_cpython_" + version.replace(".", "_"), test)


add_tests()

if __name__ == "__main__":
    unittest.main()
