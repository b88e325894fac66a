"""Where a peer is installed: a virtual environment of its own, below a folder that is kept.

  environment.install(home, "ray", "requirements/ray.txt", print)
  subprocess.run([environment.python_of(home, "ray"), "-c", "import ray"])

An environment that was installed from the same requirements is used again. One that was not finished, or was made from
others, is made anew. Two processes must not install the same peer below the same folder at once.
"""
import json
import pathlib
import shutil
import subprocess
import sys

INSTALL_TIMEOUT_SECONDS = 900
# Bytes on disk that have to be free before anything is installed: the largest peer takes 6 GB.
FREE_BYTES = 8 << 30
STAMP = "installed.json"


class InstallError(Exception):
    """It could not be installed; the text is the last that pip said, or what is missing."""


def python_of(home, name):
    return pathlib.Path(home) / name / "bin" / "python"


def stamp_of(requirements):
    """What a finished environment says of itself: the same text exactly when the same would be installed."""
    text = pathlib.Path(requirements).read_text(encoding="ascii")
    return json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "requirements": text.split()}, indent=1)


def is_installed(home, name, requirements):
    stamp = pathlib.Path(home) / name / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == stamp_of(requirements)


def pinned_version(requirements, package):
    """Of the text of a file of requirements. KeyError: `package` is not in it."""
    return dict(line.split("==", 1) for line in requirements.split())[package]


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1][:300]


def run(command):
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace", timeout=INSTALL_TIMEOUT_SECONDS, check=False)
    except FileNotFoundError as error:
        raise InstallError("there is no %s" % command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise InstallError("%s was not done after %d s" % (command[0], INSTALL_TIMEOUT_SECONDS)) from error
    if result.returncode != 0:
        raise InstallError(last_words(result.stdout))


def install(home, name, requirements, progress):
    """Makes the environment if it is not there. `requirements` is a file with every distribution, pinned: nothing else is
    installed. `progress` takes a line of text. Raises InstallError."""
    if is_installed(home, name, requirements):
        return
    folder = pathlib.Path(home) / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    if shutil.disk_usage(folder.parent).free < FREE_BYTES:
        raise InstallError("fewer than %.0f GB are free in %s" % (FREE_BYTES / 1e9, folder.parent))
    progress("installing %s into %s" % (name, folder))
    # Debian's venv comes without pip; the machine's own pip installs into it.
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    run([sys.executable, "-m", "pip", "--python", str(python_of(home, name)), "install", "--quiet", "--no-deps",
         "--only-binary=:all:", "--requirement", str(requirements)])
    (folder / STAMP).write_text(stamp_of(requirements), encoding="utf-8")
