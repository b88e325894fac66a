"""Fuzz targets as ordinary tests."""

def fuzz_test(name, srcs, corpus, deps = [], mutations = 2000, size = "small", **kwargs):
    """Replays a fuzz target over its corpus and over seeded mutations of it.

    Args:
      name: the test, by convention ending in _fuzz_test.
      srcs: the file that defines LLVMFuzzerTestOneInput (see testing/fuzz/fuzz_target.h).
      corpus: files, commonly glob(["corpus/<what>/*"]).
      deps: what the target fuzzes.
      mutations: how many mutations of each corpus file are tried. More of them by hand:
        bazel run //th/weights:layout_fuzz_test -- --mutations=1000000 --seed=7
      size: as in any test.
      **kwargs: passed on to cc_test.
    """
    if not corpus:
        fail("fuzz_test %s has no corpus" % name)
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        data = corpus,
        args = ["--mutations=%d" % mutations] + ["$(location %s)" % file for file in corpus],
        deps = deps + ["//testing/fuzz:replay_main"],
        **kwargs
    )
