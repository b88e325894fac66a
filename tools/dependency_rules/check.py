#!/usr/bin/python3
"""Checks the packages of th/ and testing/ against rules.py: order, purity, visibility and shape. See README.md.

  tools/dependency_rules/check.py [ROOT]      one line a violation; exit status 1 if there is one

Reads BUILD files and sources; needs neither Bazel nor a build.
"""
import argparse
import ast
import collections
import pathlib
import re
import sys

try:
    from tools.dependency_rules import rules
except ImportError:  # run by its path
    sys.dont_write_bytecode = True
    import rules

TEST_KINDS = {"cc_test", "py_test", "sh_test", "mutation_test", "elf_versions_test", "test_suite", "fuzz_test"}
FACADE_KINDS = {"cc_library", "alias", "proto_library", "cc_binary", "py_library"}
# Functions that mean the same in Starlark.
PYTHON_FUNCTIONS = {"bool", "dict", "enumerate", "int", "len", "list", "range", "sorted", "str", "tuple", "zip"}
EVERYBODY = {"//visibility:public", "//:__subpackages__", "//th:__subpackages__"}


class Target:
    """One rule of a BUILD file. `label` is '//th/weights:segments'."""

    def __init__(self, package, kind, attributes, default_visibility):
        self.package, self.kind = package, kind
        self.name = attributes.get("name", "")
        self.label = "//%s:%s" % (package, self.name)
        self.deps = [absolute(d, package) for key in ("deps", "implementation_deps") for d in as_list(attributes.get(key))]
        if kind == "alias":
            self.deps = [absolute(attributes.get("actual", ""), package)]
        if kind == "cc_grpc_library":
            self.deps += [absolute(attributes.get("proto", ""), package), "@com_github_grpc_grpc//:grpc++"]
        self.sources = [s for key in ("srcs", "hdrs", "textual_hdrs") for s in as_list(attributes.get(key))
                        if not s.startswith(("//", "@", ":"))]
        self.visibility = as_list(attributes.get("visibility", default_visibility))
        self.is_test = kind in TEST_KINDS or kind.endswith("_test") or bool(attributes.get("testonly"))


def as_list(value):
    return [value] if isinstance(value, str) else list(value or [])


def absolute(label, package):
    """':x', 'x', '//a/b' -> '//package:x', '//package:x', '//a/b:b'."""
    if label.startswith("@"):
        if "//" not in label:
            return "%s//:%s" % (label, label[1:])
        repository, path = label.split("//", 1)
        if ":" in path:
            return label
        return "%s//%s:%s" % (repository, path, path.rsplit("/", 1)[-1] or repository[1:])
    if label.startswith("//"):
        return label if ":" in label else "%s:%s" % (label, label.rsplit("/", 1)[-1])
    return "//%s:%s" % (package, label.lstrip(":"))


class Selected(list):
    """All branches of a select() at once: whatever the configuration, the rules hold."""


def read_build_file(path, package):
    """The targets of one BUILD file. Starlark is close enough to Python to be executed with recorders for functions."""
    code = path.read_text()
    tree = ast.parse(code, str(path))
    targets = []
    state = {"default": ["//visibility:private"]}

    def recorder(kind):
        def record(*_, **attributes):
            if kind == "package":
                state["default"] = as_list(attributes.get("default_visibility", state["default"]))
            elif "name" in attributes:
                targets.append(Target(package, kind, attributes, state["default"]))
            return []
        return record

    def select(branches, **_):
        return Selected(item for branch in branches.values() for item in as_list(branch))

    names = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    loaded = {a.value for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "load"
              for a in n.args[1:] if isinstance(a, ast.Constant)}
    scope = {n: recorder(n) for n in (names | loaded) - PYTHON_FUNCTIONS}
    scope.update(select=select, load=lambda *_, **__: None,
                 glob=lambda include, exclude=(), **_: globbed(path.parent, include, exclude),
                 Label=str, exports_files=lambda *_, **__: None)
    exec(compile(tree, str(path), "exec"), scope)  # pylint: disable=exec-used
    return targets


def globbed(folder, include, exclude=()):
    def matching(patterns):
        return {str(p.relative_to(folder)) for pattern in patterns for p in folder.glob(pattern) if p.is_file()}
    return sorted(matching(include) - matching(exclude))


class Tree:
    """All targets below th/ and testing/ of one checkout."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.targets = {}
        self.packages = []
        other_workspaces = {path.parent for path in self.root.glob("testing/**/WORKSPACE")}
        for path in sorted([*self.root.glob("th/**/BUILD.bazel"), *self.root.glob("testing/**/BUILD.bazel")]):
            package = str(path.parent.relative_to(self.root))
            if package == "th" or other_workspaces & {path.parent, *path.parents}:
                continue
            self.packages.append(package)
            for target in read_build_file(path, package):
                self.targets[target.label] = target

    def shipped(self):
        return [t for t in self.targets.values() if not t.is_test and not is_testing(t.package)]


def group_of(package):
    """The entry of the tables that a package belongs to: 'th/transfer/tcp' -> 'th/transfer'."""
    return "/".join(package.split("/")[:2])


def is_testing(package):
    return package.split("/")[0] == "testing"


def package_of(label):
    return label[2:].split(":")[0] if label.startswith("//") else None


def matches(label, patterns):
    return any(label == p or (p.endswith("*") and label.startswith(p[:-1])) for p in patterns)


# ---- order ---------------------------------------------------------------------------------------------------------

KNOWN = {*rules.ORDER, *rules.TESTING, *rules.USED_ONLY_BY}


def level_of(group):
    """How high it stands in the order; what stands on no package of th/ is below them all."""
    highest = rules.TESTING.get(group, group)
    return -1 if highest is None else rules.ORDER.index(highest)


def may_depend(user, used):
    """None if group `user` may depend on group `used`, else why not."""
    if user == used:
        return None
    if used in rules.USED_ONLY_BY:
        if user in rules.USED_ONLY_BY[used]:
            return None
        return "only %s may use %s" % (", ".join(rules.USED_ONLY_BY[used]), used)
    if user in rules.USED_ONLY_BY:
        return None if is_testing(used) else "%s depends on nothing in th/" % user
    if level_of(used) > level_of(user):
        return "%s is above %s in the order of packages" % (used, user)
    return None


def check_order(tree):
    for package in tree.packages:
        if group_of(package) not in KNOWN:
            yield "%s: the package is in no table of tools/dependency_rules/rules.py" % package
    for target in tree.targets.values():
        user = group_of(target.package)
        for dep in target.deps:
            package = package_of(dep)
            if package and user in KNOWN and group_of(package) in KNOWN:
                reason = may_depend(user, group_of(package))
                if reason:
                    yield "%s -> %s: %s" % (target.label, dep, reason)
            if package and is_testing(package) and not is_testing(user) and not target.is_test:
                yield "%s -> %s: only tests may depend on //testing" % (target.label, dep)


INCLUDE = re.compile(r'^\s*#\s*include\s+"((?:th|testing)(?:/[^"]+)?)/[^"/]+"', re.M)


def check_includes(tree):
    """An include that the BUILD file hides behind a longer path counts like a dependency."""
    for target in tree.targets.values():
        if target.is_test and not is_testing(target.package):
            continue
        for path, text in sources_of(tree, target):
            for included in set(INCLUDE.findall(text)):
                user, used = group_of(target.package), group_of(included)
                if user in KNOWN and used in KNOWN:
                    reason = may_depend(user, used)
                    if reason:
                        yield "%s includes a header of %s: %s" % (path, included, reason)


# ---- purity --------------------------------------------------------------------------------------------------------

def paths_to_forbidden(tree, start):
    """Shortest chains of labels from one target of a pure package to what it may not reach."""
    queue = collections.deque([[start.label]])
    seen = {start.label}
    while queue:
        path = queue.popleft()
        label = path[-1]
        package = package_of(label)
        if package and package.startswith("th/"):
            if group_of(package) not in rules.PURE:
                yield path
                continue
            for dep in tree.targets[label].deps if label in tree.targets else []:
                if dep not in seen:
                    seen.add(dep)
                    queue.append(path + [dep])
        elif not matches(label, rules.PURE_MAY_USE):
            yield path


def check_purity_of_targets(tree):
    shortest = {}  # by its last step: one violation for each wrong dependency
    for target in tree.shipped():
        if group_of(target.package) in rules.PURE:
            for path in paths_to_forbidden(tree, target):
                known = shortest.setdefault(tuple(path[-2:]), path)
                if len(path) < len(known):
                    shortest[tuple(path[-2:])] = path
    for path in shortest.values():
        yield "%s: a pure package may not reach it" % " -> ".join(path)


def without_comments_and_strings(code):
    """The code with the text of comments and string literals blanked; #include lines keep their names."""
    def blank(match):
        text = match.group(0)
        if text.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", text)
        return text if match.group("include") else '""'
    return re.sub(r'(?P<include>^\s*#\s*include\s*"[^"\n]*")|//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\2"|"(?:\\.|[^"\\\n])*"',
                  blank, code, flags=re.S | re.M)


def sources_of(tree, target):
    for source in target.sources:
        path = tree.root / target.package / source
        if path.suffix in (".cc", ".h", ".inc") and path.is_file():
            yield str(path.relative_to(tree.root)), path.read_text()


def check_purity_of_sources(tree):
    for target in tree.shipped():
        package = group_of(target.package)
        if package not in rules.PURE and package not in rules.PURE_BUT_FOR:
            continue
        for path, text in sources_of(tree, target):
            code = without_comments_and_strings(text)
            for what, pattern in rules.IMPURE_CODE.items():
                if what == rules.PURE_BUT_FOR.get(package):
                    continue
                found = re.search(pattern, code, re.M)
                if found:
                    line = code.count("\n", 0, found.start() + len(found.group(0)) - len(found.group(0).lstrip())) + 1
                    yield "%s:%d: '%s': a pure package may not use %s" % (path, line, found.group(0).strip(), what)


# ---- shape ---------------------------------------------------------------------------------------------------------

def check_shape(tree):
    for package in tree.packages:
        if is_testing(package):
            continue
        if not (tree.root / package / "README.md").is_file():
            yield "%s: there is no README.md" % package
        facade = rules.FACADES.get(package, "//%s:%s" % (package, package.rsplit("/", 1)[-1]))
        target = tree.targets.get(facade)
        if target is None or target.kind not in FACADE_KINDS:
            yield "%s: there is no facade target %s" % (package, facade)
        elif not EVERYBODY & set(target.visibility) and group_of(package) == package:
            yield "%s: the facade is visible to nobody but %s" % (facade, ", ".join(target.visibility))


def check_visibility(tree):
    for target in tree.targets.values():
        is_facade = target.name == target.package.rsplit("/", 1)[-1]
        if target.is_test or is_facade or target.kind in ("cc_binary", "cc_shared_object", "filegroup"):
            continue
        if is_testing(target.package) or target.label in rules.ALSO_VISIBLE:
            continue
        for shown_to in target.visibility:
            if shown_to in EVERYBODY:
                yield ("%s: visible to %s, but only the facade may be; ALSO_VISIBLE in "
                       "tools/dependency_rules/rules.py lists exceptions" % (target.label, shown_to))
            elif shown_to.endswith(":__subpackages__") and not shown_to.startswith(
                    ("//testing:", "//%s:" % group_of(target.package))):
                yield "%s: visible to all of %s; name the packages one by one" % (target.label, shown_to)


def check_size(tree):
    files = collections.defaultdict(set)
    for target in tree.shipped():
        files[target.package].update(tree.root / target.package / s for s in target.sources if s.endswith((".h", ".cc")))
    for package, paths in sorted(files.items()):
        lines = sum(len(p.read_text().splitlines()) for p in paths if p.is_file())
        limit = rules.MAX_LINES_OF.get(package, rules.MAX_LINES)
        if lines > limit:
            yield "%s: %d lines, and one can see into %d: divide it by what its parts are for" % (package, lines, limit)


CHECKS = [check_order, check_includes, check_purity_of_targets, check_purity_of_sources, check_shape, check_visibility, check_size]


def violations(root):
    tree = Tree(root)
    return [v for check in CHECKS for v in check(tree)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent.parent)
    found = violations(parser.parse_args().root)
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
