"""Writes the wheel of the package tensorhub: the Python files, libtensorhub.so, and all programs in one file.

The same inputs give the same bytes: entries are sorted, and have one date.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import zipfile

TAG = "py3-none-manylinux_2_34_x86_64"
PROGRAMS = ["th", "tensorhub_server", "tensorhub_worker"]
# What programs find beside themselves: each starts the file that has them all.
LINK = '#!/bin/sh\nexec "${0%%/*}/tensorhub" %s "$@"\n'
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say

METADATA = """\
Metadata-Version: 2.1
Name: tensorhub
Version: %s
Summary: Moves LLM weights between RL trainers and rollouts
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Description-Content-Type: text/markdown

%s"""

# What frameworks load by themselves.
PLUGINS = """[vllm.general_plugins]
tensorhub = tensorhub.adapters.vllm:register

[sglang.srt.plugins]
tensorhub = tensorhub.adapters.sglang_plugin:register
"""

# From a file of the repository a link leads nowhere in the wheel: its text stays.
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]*\)")


def version_of(init: str) -> str:
    return re.search(r'^__version__ = "([^"]+)"$', init, re.MULTILINE).group(1)


def contents(arguments) -> dict:
    """{path in the wheel: (bytes, whether it is a program)}"""
    files = {}
    for path in arguments.python:
        files[path.as_posix().rpartition("th/python/")[2]] = (path.read_bytes(), False)
    files["tensorhub/libtensorhub.so"] = (arguments.library.read_bytes(), False)
    files["tensorhub/bin/tensorhub"] = (arguments.programs.read_bytes(), True)
    for program in PROGRAMS + ["controlled_rank"]:
        files["tensorhub/bin/" + program] = ((LINK % program).encode(), True)

    version = version_of(files["tensorhub/__init__.py"][0].decode())
    info = "tensorhub-%s.dist-info/" % version
    readme = RELATIVE_LINK.sub(r"\1", arguments.readme.read_text())
    files[info + "METADATA"] = ((METADATA % (version, readme)).encode(), False)
    files[info + "WHEEL"] = (("Wheel-Version: 1.0\nGenerator: tensorhub\nRoot-Is-Purelib: false\nTag: %s\n" % TAG).encode(), False)
    files[info + "LICENSE"] = (arguments.license.read_bytes(), False)
    scripts = "".join("%s = tensorhub._programs:%s\n" % (program, program) for program in PROGRAMS)
    files[info + "entry_points.txt"] = (("[console_scripts]\n%s\n%s" % (scripts, PLUGINS)).encode(), False)

    record = "".join("%s,sha256=%s,%d\n" % (path, digest_of(data), len(data)) for path, (data, _) in sorted(files.items()))
    files[info + "RECORD"] = ((record + info + "RECORD,,\n").encode(), False)
    return files


def digest_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the wheel; its name is checked")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libtensorhub.so, stripped")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="//th/programs:tensorhub, stripped")
    parser.add_argument("--readme", type=pathlib.Path, required=True)
    parser.add_argument("--license", type=pathlib.Path, required=True)
    parser.add_argument("python", type=pathlib.Path, nargs="+", help="the files of the package")
    arguments = parser.parse_args()

    files = contents(arguments)
    expected = "tensorhub-%s-%s.whl" % (version_of(files["tensorhub/__init__.py"][0].decode()), TAG)
    if arguments.out.name != expected:
        parser.error("the wheel is to be called %s, as the version of tensorhub/__init__.py says, not %s"
                     % (expected, arguments.out.name))
    with zipfile.ZipFile(arguments.out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, (data, is_program) in sorted(files.items()):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.create_system = 3  # Unix: external_attr has its modes
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data, compresslevel=9)


if __name__ == "__main__":
    main()
