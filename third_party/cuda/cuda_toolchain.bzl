"""cuda_toolchain: a compiler of CUDA kernels, as Bazel's toolchain resolution finds it.

    load("//third_party/cuda:cuda_toolchain.bzl", "cuda_toolchain")

    cuda_toolchain(
        name = "nvcc",
        compiler = "@cuda//:compiler",
        host_compiler = "@gcc12//:all",
        host_compiler_path = "external/gcc12/bin/gcc",
    )

    toolchain(
        name = "toolchain",
        toolchain = ":nvcc",
        toolchain_type = "//third_party/cuda:toolchain_type",
    )

tensorhub_repositories registers the one of //third_party/cuda. A workspace with a CUDA compiler of its own registers a
toolchain of this type before it calls that. A rule that compiles kernels names CUDA_TOOLCHAIN_TYPE in its `toolchains`;
ctx.toolchains[CUDA_TOOLCHAIN_TYPE] has

    nvcc                 the path of nvcc, which finds its parts beside itself
    host_compiler_path   of the compiler that nvcc runs for the host's part (-ccbin)
    host_compiler_flags  what that one needs (-Xcompiler), a list
    files                a depset of all that an action needs"""

CUDA_TOOLCHAIN_TYPE = str(Label("//third_party/cuda:toolchain_type"))

def _impl(ctx):
    # The compiler's files are whole directories: nvcc lies in the one that is named bin.
    folders = [f.path for f in ctx.files.compiler if f.basename == "bin"]
    if len(folders) != 1:
        fail("cuda_toolchain: %s has no folder bin with nvcc" % ctx.attr.compiler.label)
    return [platform_common.ToolchainInfo(
        nvcc = folders[0] + "/nvcc",
        host_compiler_path = ctx.attr.host_compiler_path,
        host_compiler_flags = ctx.attr.host_compiler_flags,
        files = depset(ctx.files.compiler + ctx.files.host_compiler),
    )]

cuda_toolchain = rule(
    implementation = _impl,
    attrs = {
        "compiler": attr.label(mandatory = True, cfg = "exec"),
        "host_compiler": attr.label(mandatory = True, cfg = "exec"),
        "host_compiler_path": attr.string(mandatory = True),
        "host_compiler_flags": attr.string_list(),
    },
)
