"""mutation_test: one line of the code is broken, and the tests must notice.

See tools/mutation/README.md."""

_RUNNER = Label("//tools/mutation:run_mutant.sh")
_SWITCH = Label("//tools/mutation:switch")

# Packages that call mutable_copies. What they use of each other is replaced by copies, too.
_MUTABLE_PACKAGES = [
    "th/mutability_contract",
    "th/pipeline_replicator",
    "th/reference_registry",
    "th/registry_state",
    "th/scheduler",
    "th/simulator",
    "th/simulator/random_runs",
    "th/worker_session",
    "tools/mutation",
]

# What a copy keeps of the rule that it is made from, beside deps and local_defines.
_LIBRARY_ATTRIBUTES = ["srcs", "hdrs", "textual_hdrs", "defines", "includes"]
_TEST_ATTRIBUTES = ["srcs", "args", "data", "size"]

# Refused in a rule that is copied: nobody has needed them, and without them it would be another rule.
_UNKNOWN_ATTRIBUTES = ["copts", "linkopts", "alwayslink", "strip_include_prefix", "include_prefix", "implementation_deps", "env"]

def _copy_of(label):
    """':x' -> ':mutable.x', '//th/scheduler' -> '//th/scheduler:mutable.scheduler'; labels of other packages stay."""
    package, colon, name = label.partition(":")
    if package and package.lstrip("/") not in _MUTABLE_PACKAGES:
        return label
    return "%s:mutable.%s" % (package, name if colon else package.split("/")[-1])

def _copied(rule, attributes):
    for attribute in _UNKNOWN_ATTRIBUTES:
        if rule.get(attribute):
            fail("mutable copy of %s: %s is not copied" % (rule["name"], attribute))
    return {a: rule[a] for a in attributes if rule.get(a)}

def mutable_copies():
    """Each cc_library above this call once more, as mutable.NAME, with every TH_MUTATE to be switched on at run time.

    Call it once in a BUILD file, below the libraries and above its mutation_tests. The copies are for mutation tests;
    those that no test reaches are never built.
    """
    if native.package_name() not in _MUTABLE_PACKAGES:
        fail("add %s to _MUTABLE_PACKAGES, so that the others use its copies" % native.package_name())
    for name, rule in native.existing_rules().items():
        if rule["kind"] == "cc_library":
            native.cc_library(
                name = "mutable." + name,
                testonly = True,
                local_defines = list(rule.get("local_defines", [])) + ["TH_MUTATIONS_AT_RUNTIME"],
                tags = ["manual"],
                visibility = ["//%s:__pkg__" % package for package in _MUTABLE_PACKAGES],
                deps = [_copy_of(label) for label in rule.get("deps", [])] + [_SWITCH],
                **_copied(rule, _LIBRARY_ATTRIBUTES)
            )

def mutation_test(name, mutation, test, timeout_seconds = 30, tags = [], **kwargs):
    """Runs `test` on the copies with `mutation` switched on; passes only if a test case then fails.

    The test of the copies, mutable.TEST, is a test as well: with no mutation it must pass.

    Args:
      name: of the test; say what is broken, as in "admit_while_draining_mutation_test".
      mutation: first argument of the TH_MUTATE in the code, as in "kAdmitWhileDraining".
      test: the cc_test of this package that must fail, as in ":mutability_contract_test".
      timeout_seconds: a mutant that runs longer than this is ended. Below the 60 s that Bazel gives a small test.
      tags: as everywhere.
      **kwargs: passed to the test rule (size, visibility, ...).
    """
    original = native.existing_rule(test.lstrip(":"))
    if not original or original["kind"] != "cc_test":
        fail("mutation_test %s: there is no cc_test named %s above this call in the same BUILD file" % (name, test))
    mutable_test = "mutable." + original["name"]
    if not native.existing_rule(mutable_test):
        native.cc_test(
            name = mutable_test,
            local_defines = list(original.get("local_defines", [])) + ["TH_MUTATIONS_AT_RUNTIME"],
            tags = ["mutation"],
            deps = [_copy_of(label) for label in original.get("deps", [])] + [_SWITCH],
            **_copied(original, _TEST_ATTRIBUTES)
        )
    native.sh_test(
        name = name,
        srcs = [_RUNNER],
        args = [mutation, str(timeout_seconds), "$(rootpath :%s)" % mutable_test] + list(original.get("args", [])),
        data = [":" + mutable_test] + list(original.get("data", [])),
        tags = tags + ["mutation"],
        **dict({"size": "small"}, **kwargs)
    )
