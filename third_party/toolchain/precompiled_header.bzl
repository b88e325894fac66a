"""Precompiles a C++ header with the compiler of the repository that this is used in.

Not by cc_toolchain, whose input the result is. Not by genrule, which warns of each folder among its inputs.
"""

def _precompiled_header_impl(ctx):
    ctx.actions.run(
        executable = ctx.attr.compiler,
        arguments = ctx.attr.flags + ["-x", "c++-header", "-c", ctx.file.header.path, "-o", ctx.outputs.out.path],
        inputs = ctx.files.compiler_files + [ctx.file.header],
        outputs = [ctx.outputs.out],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling the standard library's headers: " + ctx.label.name,
    )

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "compiler": attr.string(doc = "Its path among compiler_files.", mandatory = True),
        "compiler_files": attr.label(mandatory = True),
        "flags": attr.string_list(),
        "header": attr.label(allow_single_file = True, mandatory = True),
        "out": attr.output(mandatory = True),
    },
)
