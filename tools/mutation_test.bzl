"""mutation_test: one line of the code is broken, and the tests must notice.

See tools/mutation/README.md."""

_RUNNER = Label("//tools/mutation:run_mutant.sh")

# A mutation may leave unused what the correct line used.
_MUTANT_COPTS = ["-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-but-set-variable"]

# What a clone keeps of the rule that it is made from.
_LIBRARY_ATTRIBUTES = ["srcs", "hdrs", "textual_hdrs", "copts", "data", "includes", "linkopts", "strip_include_prefix", "include_prefix", "alwayslink"]
_TEST_ATTRIBUTES = ["srcs", "copts", "data", "linkopts"]

def _name_in_package(label):
    """':x' or '//this/package:x' -> 'x'; None for a label of another package."""
    if label.startswith(":"):
        return label[1:]
    here = "//%s:" % native.package_name()
    if label.startswith(here):
        return label[len(here):]
    return None

def _rule(name, kind):
    found = native.existing_rule(name)
    if not found or found["kind"] != kind:
        fail("mutation_test: there is no %s named %r above this call in the same BUILD file" % (kind, name))
    return found

def _libraries_below(test):
    """The cc_library rules of this package that `test` reaches inside this package, by name."""
    found = {}
    frontier = [test]
    for _ in range(100):  # no `while` in Starlark; a package is not that deep
        following = []
        for parent in frontier:
            for label in parent.get("deps", []):
                name = _name_in_package(label)
                library = native.existing_rule(name) if name else None
                if library and library["kind"] == "cc_library" and name not in found:
                    found[name] = library
                    following.append(library)
        frontier = following
    return found

def _that_reach(libraries, lib_name):
    """Those of `libraries` whose code can change when `lib_name` does; the others are shared."""
    reaching = {lib_name: libraries[lib_name]}
    for _ in range(100):
        before = len(reaching)
        for name, library in libraries.items():
            if any([_name_in_package(label) in reaching for label in library.get("deps", [])]):
                reaching[name] = library
        if len(reaching) == before:
            break
    return reaching

def mutable_sources(visibility, name = "sources"):
    """This package's sources but its tests': to be compiled again with mutations that run time switches on."""
    native.filegroup(
        name = name,
        srcs = native.glob(["*.cc", "*.h"], exclude = ["*_test.cc", "*_harness.*"]),
        visibility = visibility,
    )

def mutation_test(name, mutation, lib, test, timeout_seconds = 30, tags = [], **kwargs):
    """Builds `test` with the mutation in `lib`; passes only if a test case then fails.

    Only this target's own copies of the package's libraries are compiled with the mutation; nothing
    else depends on them.

    Args:
      name: of the test; say what is broken, as in "admit_while_draining_mutation_test".
      mutation: first argument of the TH_MUTATE in the code, as in "kAdmitWhileDraining".
      lib: the cc_library of this package whose sources hold that TH_MUTATE, as in ":buffer_state".
      test: the cc_test of this package that must fail, as in ":buffer_state_test".
      timeout_seconds: a mutant that runs longer than this counts as caught. Below the 60 s that Bazel gives a small test.
      tags: as everywhere.
      **kwargs: passed to the test rule (size, visibility, ...).
    """
    lib_name = _name_in_package(lib)
    test_name = _name_in_package(test)
    if not lib_name or not test_name:
        fail("mutation_test %s: lib and test must be targets of this package" % name)
    _rule(lib_name, "cc_library")
    test_rule = _rule(test_name, "cc_test")
    libraries = _libraries_below(test_rule)
    if lib_name not in libraries:
        fail("mutation_test %s: %s does not depend on %s within this package" % (name, test, lib))
    libraries = _that_reach(libraries, lib_name)
    define = "TH_MUTATION_%s=1" % mutation
    mutants = {original: "%s.%s" % (name, original) for original in libraries}

    def_args = dict(testonly = True, tags = ["manual"], visibility = ["//visibility:private"])
    for original, mutant in mutants.items():
        library = libraries[original]
        copied = _copied(library, _LIBRARY_ATTRIBUTES)
        if original == lib_name:
            copied["copts"] = list(library.get("copts", [])) + _MUTANT_COPTS
        native.cc_library(
            name = mutant,
            defines = list(library.get("defines", [])),
            local_defines = list(library.get("local_defines", [])) + [define],
            deps = _replaced(library.get("deps", []), mutants),
            **dict(copied, **def_args)
        )
    native.cc_binary(
        name = name + ".binary",
        local_defines = list(test_rule.get("local_defines", [])) + [define],
        deps = _replaced(test_rule.get("deps", []), mutants),
        **dict(_copied(test_rule, _TEST_ATTRIBUTES), **def_args)
    )
    native.sh_test(
        name = name,
        srcs = [_RUNNER],
        args = [mutation, str(timeout_seconds), "$(rootpath :%s.binary)" % name] + list(test_rule.get("args", [])),
        data = [":%s.binary" % name] + list(test_rule.get("data", [])),
        tags = tags + ["mutation"],
        **dict({"size": "small"}, **kwargs)
    )

def _replaced(labels, mutants):
    return [":" + mutants[_name_in_package(l)] if _name_in_package(l) in mutants else l for l in labels]

def _copied(rule, attributes):
    return {a: rule[a] for a in attributes if rule.get(a)}
