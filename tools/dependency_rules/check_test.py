"""Tests check.py on small trees, each of which breaks one rule."""
import pathlib
import tempfile
import unittest

from tools.dependency_rules import check

# A good tree: one pure package below another, and a shell above them.
WEIGHTS = """
cc_library(name = "weights", hdrs = ["weights.h"], visibility = ["//:__subpackages__"], deps = [":segments"])
cc_library(name = "segments", srcs = ["segments.cc"], deps = ["@com_google_absl//absl/strings"])
cc_test(name = "segments_test", srcs = ["segments_test.cc"], deps = [":segments", "//testing:status_matchers"])
"""
SCHEDULER = """
load("//tools:mutation_test.bzl", "mutation_test")

package(default_visibility = ["//visibility:private"])

cc_library(name = "scheduler", hdrs = ["scheduler.h"], visibility = ["//:__subpackages__"], deps = ["//th/weights"])
[mutation_test(name = n + "_mutation_test", lib = ":scheduler", test = ":t") for n in ["a", "b"]]
"""
SERVER = """
cc_library(
    name = "server",
    visibility = ["//:__subpackages__"],
    deps = ["//th/scheduler", "//th/version", "@com_github_grpc_grpc//:grpc++"],
)
"""
CLUSTER = """
cc_library(
    name = "cluster",
    testonly = True,
    hdrs = ["cluster.h"],
    data = ["//th/cli:th"],
    deps = ["//testing:status_matchers", "//th/controlled_rank:rank_process"],
)
"""
GOOD = {
    "th/BUILD.bazel": "",
    "th/weights/BUILD.bazel": WEIGHTS,
    "th/weights/README.md": "weights",
    "th/weights/segments.cc": '#include "th/weights/weights.h"\n// takes no std::mutex, reads no absl::Now()\nint x;\n',
    "th/weights/weights.h": 'inline const char* kText = "std::thread";\n',
    "th/weights/segments_test.cc": "#include <thread>\n",
    "th/scheduler/BUILD.bazel": SCHEDULER,
    "th/scheduler/README.md": "scheduler",
    "th/scheduler/scheduler.h": "",
    "th/version/BUILD.bazel": 'cc_library(name = "version", visibility = ["//visibility:public"])',
    "th/version/README.md": "version",
    "th/server/BUILD.bazel": SERVER,
    "th/server/README.md": "server",
    "th/wire/README.md": "wire",
    "testing/BUILD.bazel": 'cc_library(name = "status_matchers", testonly = True, visibility = ["//visibility:public"])',
    "testing/cluster/BUILD.bazel": CLUSTER,
    "testing/cluster/cluster.h": "",
    "testing/other_workspace/WORKSPACE": "",
    "testing/other_workspace/BUILD.bazel": 'cc_binary(name = "rollout", deps = ["@tensorhub//th/client"])',
}


class CheckTest(unittest.TestCase):

    def violations(self, **changed):
        """`changed` maps a key of PATHS below to a file's new content; None removes the file."""
        paths = {"weights": "th/weights/BUILD.bazel", "scheduler": "th/scheduler/BUILD.bazel",
                 "server": "th/server/BUILD.bazel", "source": "th/weights/segments.cc",
                 "header": "th/scheduler/scheduler.h", "wire": "th/wire/BUILD.bazel",
                 "wire_source": "th/wire/wire.cc", "readme": "th/weights/README.md",
                 "cluster": "testing/cluster/BUILD.bazel", "cluster_header": "testing/cluster/cluster.h",
                 "new_testing": "testing/theatre/BUILD.bazel"}
        return self.violations_of({paths[key]: content for key, content in changed.items()})

    def violations_of(self, changed):
        files = dict(GOOD, **changed)
        with tempfile.TemporaryDirectory() as root:
            for path, content in files.items():
                if content is not None:
                    pathlib.Path(root, path).parent.mkdir(parents=True, exist_ok=True)
                    pathlib.Path(root, path).write_text(content)
            return check.violations(root)

    def test_good_tree_has_no_violation(self):
        self.assertEqual(self.violations(), [])

    def test_dependency_on_a_package_above_is_named(self):
        self.assertEqual(
            self.violations(weights=WEIGHTS.replace('"@com_google_absl//absl/strings"', '"//th/scheduler"')),
            ["//th/weights:segments -> //th/scheduler:scheduler: th/scheduler is above th/weights in the order of "
             "packages"])

    def test_include_of_a_package_above_is_named(self):
        self.assertEqual(
            self.violations(source='#include "th/scheduler/scheduler.h"\n'),
            ["th/weights/segments.cc includes a header of th/scheduler: th/scheduler is above th/weights in the order "
             "of packages"])

    def test_grpc_in_a_pure_package_is_named_with_its_path(self):
        self.assertEqual(
            self.violations(weights=WEIGHTS.replace("@com_google_absl//absl/strings", "@com_github_grpc_grpc//:grpc++")),
            ["//th/weights:segments -> @com_github_grpc_grpc//:grpc++: a pure package may not reach it"])

    def test_impurity_reached_through_another_package_is_named_with_its_path(self):
        found = self.violations(scheduler=SCHEDULER.replace('"//th/weights"', '"//th/server"'))
        self.assertIn("//th/scheduler:scheduler -> //th/server:server: a pure package may not reach it", found)

    def test_synchronization_in_a_branch_of_select_is_named(self):
        found = self.violations(weights=WEIGHTS.replace(
            'deps = ["@com_google_absl//absl/strings"]',
            'deps = select({":x": ["@com_google_absl//absl/synchronization"], "//conditions:default": []})'))
        self.assertEqual(found, ["//th/weights:segments -> @com_google_absl//absl/synchronization:synchronization: a "
                                 "pure package may not reach it"])

    def test_impure_code_is_named_with_its_line(self):
        for code, what in [("#include <mutex>", "a lock"), ("absl::Mutex mu;", "a lock"),
                           ("#include <thread>", "a thread"), ("auto t = absl::Now();", "a clock"),
                           ("auto t = std::chrono::steady_clock::now();", "a clock"),
                           ("auto t = time(nullptr);", "a clock"), ("#include <random>", "a random source"),
                           ("int r = rand();", "a random source"), ("#include <sys/socket.h>", "a socket"),
                           ('#include "th/proto/x.pb.h"', "RPC or protobuf"),
                           ("#include <infiniband/verbs.h>", "hardware")]:
            with self.subTest(code):
                found = [v for v in self.violations(source="int x;\n" + code + "\n") if "may not use" in v]
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith("th/weights/segments.cc:2: "), found[0])
                self.assertTrue(found[0].endswith("may not use " + what), found[0])

    def test_package_that_is_pure_but_for_its_purpose_may_do_that_only(self):
        build = 'cc_library(name = "wire", srcs = ["wire.cc"], visibility = ["//:__subpackages__"])'
        self.assertEqual([], self.violations(wire=build, wire_source='#include "th/proto/x.pb.h"\n'))
        [found] = self.violations(wire=build, wire_source='absl::Time t = absl::Now();\n')
        self.assertIn("th/wire/wire.cc:1: 'absl::Now'", found)
        self.assertIn("a clock", found)

    def test_look_alikes_are_no_impurity(self):
        self.assertEqual(self.violations(source="int y = x.time(0) + operand(1) + lease.rand(2); absl::Time t;\n"), [])

    def test_version_in_a_library_below_the_binaries_is_named(self):
        found = self.violations(scheduler=SCHEDULER.replace('"//th/weights"', '"//th/version"'))
        self.assertIn("//th/scheduler:scheduler -> //th/version:version: only th/server, th/worker, th/cli, "
                      "testing/fresh_seeds may use th/version", found)

    def test_testing_in_a_shipped_target_is_named(self):
        found = self.violations(server=SERVER.replace("//th/scheduler", "//testing:clock"))
        self.assertEqual(found, ["//th/server:server -> //testing:clock: only tests may depend on //testing"])

    def test_testing_that_reaches_above_its_place_is_named(self):
        for wrong in ["//th/cli:json_lines", "//th/demo"]:
            with self.subTest(wrong):
                [found] = self.violations(cluster=CLUSTER.replace("//th/controlled_rank:rank_process", wrong))
                self.assertTrue(found.startswith("//testing/cluster:cluster -> %s" % wrong), found)
                self.assertIn("is above testing/cluster in the order of packages", found)

    def test_include_in_testing_of_a_package_above_is_named(self):
        self.assertEqual(
            self.violations(cluster_header='#include "th/cli/json_lines.h"\n'),
            ["testing/cluster/cluster.h includes a header of th/cli: th/cli is above testing/cluster in the order of packages"])

    def test_test_below_what_it_uses_of_testing_is_named(self):
        self.assertEqual(
            self.violations(weights=WEIGHTS.replace("//testing:status_matchers", "//testing/cluster")),
            ["//th/weights:segments_test -> //testing/cluster:cluster: testing/cluster is above th/weights in the order of "
             "packages"])

    def test_unknown_package_of_testing_is_named(self):
        self.assertEqual(
            self.violations(new_testing='cc_library(name = "theatre", testonly = True)'),
            ["testing/theatre: the package is in no table of tools/dependency_rules/rules.py"])

    def test_missing_readme_is_named(self):
        self.assertEqual(self.violations(readme=None), ["th/weights: there is no README.md"])

    def test_missing_facade_is_named(self):
        found = self.violations(server=SERVER.replace('name = "server"', 'name = "service"'))
        self.assertIn("th/server: there is no facade target //th/server:server", found)

    def test_private_facade_is_named(self):
        found = self.violations(server=SERVER.replace("//:__subpackages__", "//visibility:private"))
        self.assertEqual(found, ["//th/server:server: the facade is visible to nobody but //visibility:private"])

    def test_public_target_beside_the_facade_is_named(self):
        found = self.violations(weights=WEIGHTS.replace('name = "segments",', 'name = "segments", '
                                                        'visibility = ["//visibility:public"],'))
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("//th/weights:segments: visible to //visibility:public"), found)

    def test_default_visibility_counts(self):
        found = self.violations(weights='package(default_visibility = ["//visibility:public"])\n' + WEIGHTS)
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("//th/weights:segments: visible to //visibility:public"), found)

    def test_package_into_which_nobody_sees_is_named(self):
        lines = {"th/weights/segments.cc": "int x;\n" * 9_999, "th/weights/segments_test.cc": "int x;\n" * 9_999}
        self.assertEqual(self.violations_of(lines), [])
        lines["th/weights/segments.cc"] = "int x;\n" * 10_000
        self.assertEqual(self.violations_of(lines),
                         ["th/weights: 10001 lines, and one can see into 10000: divide it by what its parts are for"])

    def test_unknown_package_is_named(self):
        found = self.violations(header="", server=None) + check.violations(self._with_unknown_package())
        self.assertIn("th/telepathy: the package is in no table of tools/dependency_rules/rules.py", found)

    def _with_unknown_package(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(__import__("shutil").rmtree, folder)
        pathlib.Path(folder, "th/telepathy").mkdir(parents=True)
        pathlib.Path(folder, "th/telepathy/BUILD.bazel").write_text('cc_library(name = "telepathy")')
        return folder


if __name__ == "__main__":
    unittest.main()
