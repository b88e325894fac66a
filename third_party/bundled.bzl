"""bundled_repository: an external repository whose files lie in this one, below third_party/bazel.

`local_repository` cannot do this: its path is relative to the main workspace, which may be another one."""

def _bundled_repository_impl(ctx):
    folder = ctx.path(Label("//third_party:BUILD.bazel")).dirname.get_child("bazel").get_child(ctx.name)
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)

bundled_repository = repository_rule(
    implementation = _bundled_repository_impl,
    local = True,
)
