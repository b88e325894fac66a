"""The tarball and the Debian package: the same files, programs that run, and a library that a C program is built against."""
import gzip
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

TARBALL, DEB, C_EXAMPLE = [pathlib.Path(path).resolve() for path in sys.argv[1:4]]
GCC = pathlib.Path("external/gcc12").resolve()
SEARCHED = ["usr/lib/gcc/x86_64-linux-gnu/12/include", "usr/include/x86_64-linux-gnu", "usr/include"]


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)


def files_below(folder):
    """{path: what it is}, by which two trees are compared."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), status.st_mode & 0o777, content)
    return found


class InstallationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        run("tar", "-xzf", TARBALL, "-C", cls.folder, check=True)
        cls.prefix = next(cls.folder.iterdir())

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_the_tarball_has_one_folder_named_after_itself(self):
        self.assertEqual(TARBALL.name, self.prefix.name + "-linux-x86_64.tar.gz")

    def test_the_debian_package_has_the_same_files_below_usr(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-x", DEB, folder, check=True)
            self.assertEqual(files_below(pathlib.Path(folder) / "usr"), files_below(self.prefix))
        fields = run("dpkg-deb", "-f", DEB, "Package", "Version", "Architecture", "Depends", check=True).stdout
        version = self.prefix.name.split("-")[1]
        self.assertEqual(fields.splitlines(), ["Package: tensorhub", "Version: " + version, "Architecture: amd64",
                                               "Depends: libc6 (>= 2.34), libgcc-s1"])

    def test_its_programs_run(self):
        for program in ("th", "tensorhub_server", "tensorhub_worker"):
            out = run(self.prefix / "bin" / program, "--version")
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertRegex(out.stdout, "^%s " % program)
        out = run(self.prefix / "bin/th", "demo", "--synthetic", "llm", "--bytes", "16MiB", "--rollouts", "2", "--rate", "20MB/s")
        self.assertEqual(out.returncode, 0, out.stdout[-3000:] + out.stderr[-3000:])
        self.assertIn("GOOD", out.stdout)

    def test_bash_completes_commands_and_flags(self):
        ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; echo "${COMPREPLY[@]}"'
        for program, words, completed in (("th", ["bench", "ser"], "server"), ("th", ["pull", "--wa"], "--wait"),
                                          ("th", ["for"], "forget"), ("tensorhub_worker", ["follow", "--kee"], "--keep"),
                                          ("tensorhub_server", ["--event-log-l"], "--event-log-limit")):
            file = self.prefix / "share/bash-completion/completions" / program
            out = run("bash", "-euc", ask, "bash", file, program, *words)
            self.assertEqual(out.stdout.strip(), completed, out.stderr)

    def test_each_program_has_a_manual_page_and_completions_for_fish(self):
        for program in ("th", "tensorhub_server", "tensorhub_worker"):
            page = gzip.decompress((self.prefix / "share/man/man1" / (program + ".1.gz")).read_bytes()).decode()
            self.assertTrue(page.startswith(".TH " + program.upper()))
            fish = (self.prefix / "share/fish/vendor_completions.d" / (program + ".fish")).read_text()
            self.assertIn("complete -c %s " % program, fish)
        self.assertIn(".B \\-\\-staging\\-limit", page)

    def pkg_config(self, field):
        """The words of a field of tensorhub.pc, as pkg-config gives them."""
        path = self.prefix / "lib/pkgconfig/tensorhub.pc"
        variables = {"pcfiledir": str(path.parent)}
        for line in path.read_text().splitlines():
            line = re.sub(r"\$\{(\w+)\}", lambda found: variables[found.group(1)], line)
            assigned = re.fullmatch(r"(\w+)=(.*)", line)
            if assigned:
                variables[assigned.group(1)] = assigned.group(2)
            elif line.startswith(field + ": "):
                return line[len(field) + 2:].split()
        raise AssertionError("tensorhub.pc has no " + field)

    def test_a_c_program_is_built_with_its_pkg_config_file(self):
        program = self.folder / "trainer"
        idirafter = [word for folder in SEARCHED for word in ("-idirafter", GCC / folder)]
        out = run(GCC / "bin/gcc", "-nostdinc", *idirafter, "-fuse-ld=gold", *self.pkg_config("Cflags"), "-o", program, C_EXAMPLE,
                  *self.pkg_config("Libs"), "-Wl,-rpath," + str(self.prefix / "lib"))
        self.assertEqual(out.returncode, 0, out.stderr)
        out = run(program)
        self.assertEqual(out.returncode, 2)
        self.assertIn("usage: trainer_c HOST:PORT", out.stderr)

    @unittest.skipUnless(shutil.which("cmake", path="/usr/local/bin:/usr/bin"), "there is no cmake on this machine")
    def test_cmake_finds_it(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.13)\nproject(p NONE)\n"
                "find_package(TensorHub 0.1 REQUIRED)\n"
                "get_target_property(location TensorHub::tensorhub IMPORTED_LOCATION)\n"
                "if(NOT EXISTS ${location})\n  message(FATAL_ERROR \"no ${location}\")\nendif()\n")
            out = run("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_PREFIX_PATH=%s" % self.prefix)
            self.assertEqual(out.returncode, 0, out.stdout + out.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
