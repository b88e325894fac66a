"""elf_versions_test: what binaries ask of the machine that they run on."""

def elf_versions_test(name, binaries, max_glibc = "2.34", libraries = [], exports = None, tags = [], **kwargs):
    """Fails if a binary needs a newer glibc, a library that not every machine has, or shows foreign symbols.

    Args:
      name: of the test.
      binaries: targets of one file each.
      max_glibc: the newest version of glibc that they may need. 2.34 is RHEL 9; Ubuntu 22.04 has 2.35.
      libraries: shared libraries that they may need beside libc, libm and libgcc_s.
      exports: for shared objects, patterns of the symbols that they may export (["th_*"]).
      tags: as everywhere.
      **kwargs: for the test rule.
    """
    options = ["--max-glibc=" + max_glibc] + ["--library=" + l for l in libraries]
    if exports:
        options += ["--export=" + e for e in exports]
    native.py_test(
        name = name,
        size = "small",
        srcs = [Label("//tools/elf:elf_versions.py")],
        main = Label("//tools/elf:elf_versions.py"),
        args = options + ["$(rootpath %s)" % b for b in binaries],
        data = binaries,
        # A sanitizer brings libraries of its own.
        tags = tags + ["no-sanitizer"],
        deps = [Label("//tools/elf")],
        **kwargs
    )
