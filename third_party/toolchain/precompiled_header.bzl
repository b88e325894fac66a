"""Precompiles a C++ header with the compiler of the repository that this is used in.

Not by cc_toolchain, whose input the result is. Not by genrule, which warns of each folder among its inputs.
"""

def _precompiled_header_impl(ctx):
    ctx.actions.run(
        executable = ctx.attr.compiler,
        arguments = ctx.attr.flags + ["-x", "c++-header", "-c", ctx.file.header.path, "-o", ctx.outputs.out.path],
        inputs = ctx.files.inputs + [ctx.file.header],
        outputs = [ctx.outputs.out],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling headers: " + ctx.label.name,
    )

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "compiler": attr.string(doc = "Its path among inputs.", mandatory = True),
        "flags": attr.string_list(),
        "header": attr.label(allow_single_file = True, mandatory = True),
        "inputs": attr.label_list(doc = "The compiler, and all that the header includes.", allow_files = True),
        "out": attr.output(mandatory = True),
    },
)
