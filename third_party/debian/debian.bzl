"""debian_repository: an external repository from pinned Debian packages, source or binary.

A repository may have the upstream sources of one source package at its root (with Debian's patches),
and the files of binary packages below `packages_folder`. Everything is pinned in lock.bzl."""

load(":lock.bzl", "DEBS", "SOURCES")

def run(ctx, command, what):
    """Runs a command of a repository rule; its failure ends the build with its own words."""
    result = ctx.execute(command, timeout = 1200)
    if result.return_code:
        fail("%s: %s\n%s%s" % (ctx.name, what, result.stdout, result.stderr))

def fetch(ctx, registry, out, archives):
    """archives: {file name: "SHA256:where"}."""
    fetcher = ctx.path(Label("//third_party:fetch.py"))
    run(ctx, ["/usr/bin/python3", fetcher, registry, out] + archives, "cannot fetch a pinned archive")

def _debian_repository_impl(ctx):
    archives = []
    debs = []
    for name in ctx.attr.packages:
        if name not in DEBS:
            fail("%s: %s is not in lock.bzl; run tools/refresh-lock" % (ctx.name, name))
        archives.append("%s:%s" % (DEBS[name].sha256, DEBS[name].path))
        debs.append("archives/" + DEBS[name].path.split("/")[-1])
    sources = []
    if ctx.attr.source:
        for path, sha256 in SOURCES[ctx.attr.source].files.items():
            archives.append("%s:%s" % (sha256, path))
            sources.append("archives/" + path.split("/")[-1])
    fetch(ctx, "debian", "archives", archives)
    if sources:
        run(ctx, ["/bin/bash", ctx.path(Label("//third_party/debian:unpack_source.sh"))] + sources, "cannot unpack")
    if debs:
        script = ctx.path(Label("//third_party/debian:unpack_packages.sh"))
        run(ctx, ["/bin/bash", script, ctx.attr.packages_folder] + debs, "cannot unpack")
    ctx.delete("archives")
    for source, path in ctx.attr.extra_files.items():
        ctx.template(path, source, {}, executable = True)
    for file, path in ctx.attr.linked_folders.items():
        ctx.symlink(ctx.path(file).dirname, path)
    if ctx.attr.prepare:
        run(ctx, ["/bin/bash", ctx.path(ctx.attr.prepare)], "preparing the sources failed")
    for path in ctx.attr.removed:
        ctx.delete(path)
    if ctx.attr.build_file:
        ctx.delete("BUILD")
        ctx.delete("BUILD.bazel")
        ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.delete("WORKSPACE.bazel")
    ctx.delete("WORKSPACE")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

debian_repository = repository_rule(
    implementation = _debian_repository_impl,
    doc = "See the top of this file.",
    environ = ["TH_DEB_MIRROR", "TH_ARCHIVE_CACHE"],
    attrs = {
        "source": attr.string(doc = "Source package, a key of SOURCES in lock.bzl."),
        "packages": attr.string_list(doc = "Binary packages, keys of DEBS in lock.bzl."),
        "packages_folder": attr.string(default = "."),
        "prepare": attr.label(doc = "Shell script that is run in the unpacked repository, after extra_files.", allow_single_file = True),
        "removed": attr.string_list(doc = "Paths that are deleted after unpacking."),
        "build_file": attr.label(doc = "Replaces the root package's BUILD file.", allow_single_file = True),
        "linked_folders": attr.label_keyed_string_dict(doc = "{file: path in the repository}: a link to the file's folder.", allow_files = True),
        "extra_files": attr.label_keyed_string_dict(doc = "{file: path in the repository}, copied.", allow_files = True),
    },
)
