"""wheel_repository: an external repository with files out of a pinned wheel; nothing of it is run."""

load("//third_party/debian:debian.bzl", "fetch", "run")
load(":lock.bzl", "LOCKED_WHEELS")

def _wheel_repository_impl(ctx):
    wheel = LOCKED_WHEELS[ctx.attr.package]
    archive = "%s:%s==%s/%s" % (wheel.sha256, ctx.attr.package, wheel.version, wheel.file)
    fetch(ctx, "pypi", "archives", [archive])
    run(ctx, ["/usr/bin/python3", "-m", "zipfile", "--extract", "archives/" + wheel.file, "unpacked"], "cannot unpack")
    for source, target in ctx.attr.folders.items():
        run(ctx, ["mv", "unpacked/" + source, target], "the wheel has no such folder")
    ctx.delete("archives")
    ctx.delete("unpacked")
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

wheel_repository = repository_rule(
    implementation = _wheel_repository_impl,
    environ = ["TH_WHEEL_MIRROR", "TH_ARCHIVE_CACHE"],
    attrs = {
        "package": attr.string(mandatory = True, doc = "A key of LOCKED_WHEELS."),
        "folders": attr.string_dict(mandatory = True, doc = "{folder in the wheel: folder in the repository}"),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
)
