"""Makes stand-ins for the CUDA libraries that torch's wheel is linked against, so that it is imported without them.

  python3 stub_libraries.py SITE_PACKAGES OUT

torch for Linux comes built for CUDA and names some 6 GB of libraries that a machine without a GPU never calls. Each stand-in
has the functions that torch's libraries look for, and ends the process when one is called.
"""
import pathlib
import re
import subprocess
import sys

# The functions of a library whose symbols carry no version begin so.
PREFIXES = {"libcublas.so": "cublas", "libcublasLt.so": "cublasLt", "libcudnn": "cudnn", "libcufft.so": "cufft",
            "libcusparse.so": "cusparse", "libcusparseLt": "cusparseLt", "libcusolver": "cusolver", "libnccl": "nccl",
            "libnvrtc": "nvrtc", "libnvshmem": "nvshmem"}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed_by(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", str(library)))


def symbols_of(library):
    """The names that a library defines, and {name: version or ""} of those that it looks for."""
    defined, wanted = set(), {}
    for line in output_of("readelf", "-W", "--dyn-syms", str(library)).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":"):
            continue
        name, _, version = fields[7].replace("@@", "@").partition("@")
        if fields[6] != "UND":
            defined.add(name)
        elif fields[4] != "WEAK":
            wanted[name] = version
    return defined, wanted


def owner_of(name, version, libraries):
    """The library that a stand-in of `name` belongs to; None: none of them."""
    if version in libraries:
        return version
    owners = [library for library in libraries for begin, prefix in PREFIXES.items()
              if library.startswith(begin) and name.startswith(prefix)]
    # "cublasLtCreate" begins as a function of cublas, too.
    return max(owners, key=lambda library: len(library.split(".so")[0]), default=None)


def make(library, functions, out):
    source = ["#include <stdio.h>", "#include <stdlib.h>"]
    for name in sorted(functions):
        source.append('void %s(void) { fputs("%s: there is no %s here\\n", stderr); abort(); }' % (name, name, library))
    versions = {}
    for name, version in functions.items():
        versions.setdefault(version, []).append(name)
    c_file, map_file = out / "stub.c", out / "stub.map"
    c_file.write_text("\n".join(source) + "\n")
    command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname," + library, "-o", str(out / library), str(c_file)]
    if any(versions):
        map_file.write_text("".join("%s { global: %s; };\n" % (version, "; ".join(sorted(names)))
                                    for version, names in sorted(versions.items()) if version))
        command.append("-Wl,--version-script=%s" % map_file)
    subprocess.run(command, check=True)


def main(site_packages, out):
    site_packages, out = pathlib.Path(site_packages), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    own = sorted((site_packages / "torch" / "lib").glob("*.so*"))
    real = sorted(site_packages.glob("nvidia/**/lib/*.so*"))
    if not own:
        sys.exit("stub_libraries: there is no torch in %s" % site_packages)
    there = {library.name for library in own + real}
    missing = sorted({name for library in own for name in needed_by(library) if name not in there and
                      any(name.startswith(begin) for begin in PREFIXES)})
    defined, wanted = set(), {}
    for library in own + real:
        found, looked_for = symbols_of(library)
        defined |= found
        if library in own:
            wanted.update(looked_for)
    functions = {library: {} for library in missing}
    for name, version in wanted.items():
        owner = None if name in defined else owner_of(name, version, missing)
        if owner is not None:
            functions[owner][name] = version if version == owner else ""
    for library in missing:
        make(library, functions[library], out)
    print("stub_libraries: %s" % ", ".join(missing))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
