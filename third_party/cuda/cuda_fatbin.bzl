"""cuda_fatbin: CUDA kernels as a C++ byte array.

    load("//third_party/cuda:cuda_fatbin.bzl", "cuda_fatbin")

    cuda_fatbin(
        name = "sum_fatbin",
        src = "sum.cu",
        deps = [":sum_lanes"],
    )

makes a cc_library with the header "<package>/sum_fatbin.h":

    namespace th { absl::Span<const unsigned char> SumFatbin(); }

It holds code for each of `architectures` and PTX for `ptx`, which the driver compiles for any later GPU. The compiler
is that of the registered toolchain (cuda_toolchain.bzl): @cuda's nvcc on @gcc12, so that nothing of the machine's CUDA or
compiler is read."""

load("//third_party/cuda:cuda_toolchain.bzl", "CUDA_TOOLCHAIN_TYPE")

# What is compiled ahead of time: A100 (and all of 8.x), H100 and H200, B200.
ARCHITECTURES = ["80", "90", "100"]

# Any GPU of this architecture or a later one runs this PTX.
PTX = "80"

def _fatbin_impl(ctx):
    toolchain = ctx.toolchains[CUDA_TOOLCHAIN_TYPE]
    out = ctx.actions.declare_file(ctx.label.name)
    headers = depset(
        ctx.files.hdrs,
        transitive = [d[CcInfo].compilation_context.headers for d in ctx.attr.deps],
    )
    arguments = ctx.actions.args()
    arguments.add_all(["--fatbin", "-std=c++20", "-O3", "-Werror", "all-warnings", "-I", ctx.label.workspace_root or "."])
    arguments.add("-ccbin", toolchain.host_compiler_path)
    for architecture in ctx.attr.architectures:
        arguments.add("-gencode", "arch=compute_%s,code=sm_%s" % (architecture, architecture))
    arguments.add("-gencode", "arch=compute_%s,code=compute_%s" % (ctx.attr.ptx, ctx.attr.ptx))
    arguments.add("-Xcompiler", ",".join(toolchain.host_compiler_flags))
    arguments.add(ctx.file.src)
    arguments.add("-o", out)
    ctx.actions.run_shell(
        outputs = [out],
        inputs = depset([ctx.file.src], transitive = [toolchain.files, headers]),
        # A PATH without the machine's own CUDA; nvcc finds its parts beside itself.
        command = "exec env -i PATH=/usr/bin:/bin TMPDIR=\"${TMPDIR:-/tmp}\" %s \"$@\"" % toolchain.nvcc,
        arguments = [arguments],
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for GPUs" % ctx.file.src.short_path,
    )
    return [DefaultInfo(files = depset([out]))]

_fatbin = rule(
    implementation = _fatbin_impl,
    attrs = {
        "src": attr.label(mandatory = True, allow_single_file = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "architectures": attr.string_list(mandatory = True),
        "ptx": attr.string(mandatory = True),
    },
    toolchains = [CUDA_TOOLCHAIN_TYPE],
)

def cuda_fatbin(name, src, hdrs = [], deps = [], architectures = ARCHITECTURES, ptx = PTX, visibility = None, **kwargs):
    """See the top of this file.

    Args:
      name: ends in "_fatbin"; the function's name is this one in camel case.
      src: the .cu file.
      hdrs: headers that it includes.
      deps: cc_library targets of whose headers it includes some.
      architectures: compute capabilities to compile for, as in ["80", "90"].
      ptx: the compute capability of the PTX.
      visibility: of the library.
      **kwargs: for all targets.
    """
    if not name.endswith("_fatbin"):
        fail("cuda_fatbin: the name %s does not end in _fatbin" % name)
    _fatbin(
        name = name + ".bin",
        src = src,
        hdrs = hdrs,
        deps = deps,
        architectures = architectures,
        ptx = ptx,
        visibility = ["//visibility:private"],
        **kwargs
    )
    function = "".join([part.capitalize() for part in name.split("_")])
    embed = str(Label("//third_party/cuda:embed_bytes"))
    native.genrule(
        name = name + ".sources",
        srcs = [name + ".bin"],
        outs = [name + ".h", name + ".cc"],
        cmd = "$(execpath %s) --function %s --header %s/%s.h $< $(location %s.h) $(location %s.cc)" %
              (embed, function, native.package_name(), name, name, name),
        exec_tools = [embed],
        visibility = ["//visibility:private"],
        **kwargs
    )
    native.cc_library(
        name = name,
        srcs = [name + ".cc"],
        hdrs = [name + ".h"],
        visibility = visibility,
        deps = ["@com_google_absl//absl/types:span"],
        **kwargs
    )
    return None
