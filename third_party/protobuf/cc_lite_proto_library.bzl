"""cc_lite_proto_library: C++ messages from a proto_library, on protobuf's lite runtime.

Bazel's own cc_proto_library builds the whole runtime library, of which messages without reflection need a third.
"""

def generate_cc(ctx, suffixes, mnemonic, out_flag, tools = [], more_arguments = []):
    """Runs protoc on the sources of ctx.attr.proto.

    Args:
      ctx: the rule's context; ctx.executable._protoc is protoc.
      suffixes: what is generated from x.proto: [".pb.cc", ".pb.h"] gives x.pb.cc and x.pb.h.
      mnemonic: of the action.
      out_flag: protoc's flag for the output folder, which stands in the place of %s.
      tools: protoc's plugins.
      more_arguments: further arguments of protoc.

    Returns:
      The providers of the rule: the output groups `srcs` and `hdrs`.
    """
    info = ctx.attr.proto[ProtoInfo]
    files = [
        ctx.actions.declare_file(src.basename[:-len(".proto")] + suffix, sibling = src)
        for src in info.direct_sources
        for suffix in suffixes
    ]

    # Where protoc puts "th/proto/x.pb.h": below the root of this repository's outputs.
    out = "/".join([part for part in [ctx.bin_dir.path, ctx.label.workspace_root] if part])
    args = ctx.actions.args()
    args.add_all(more_arguments)
    args.add(out, format = out_flag)
    args.add_joined(info.transitive_descriptor_sets, join_with = ":", format_joined = "--descriptor_set_in=%s")
    args.add_all(info.direct_sources, map_each = _import_path)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        tools = tools,
        inputs = info.transitive_descriptor_sets,
        outputs = files,
        arguments = [args],
        mnemonic = mnemonic,
    )
    srcs = depset([f for f in files if f.extension == "cc"])
    hdrs = depset([f for f in files if f.extension == "h"])
    return [DefaultInfo(files = depset(files)), OutputGroupInfo(srcs = srcs, hdrs = hdrs)]

def _import_path(f):
    """The path that an `import` names: relative to the root of the file's own repository."""
    return f.short_path[len("../" + f.owner.workspace_name + "/"):] if f.owner.workspace_name else f.short_path

def generated_cc_library(name, gen, deps, **kwargs):
    """A cc_library of what the target `gen`, a rule over generate_cc, has generated."""
    native.filegroup(name = name + "_srcs", srcs = [gen], output_group = "srcs")
    native.filegroup(name = name + "_hdrs", srcs = [gen], output_group = "hdrs")
    native.cc_library(name = name, srcs = [name + "_srcs"], hdrs = [name + "_hdrs"], deps = deps, **kwargs)

PROTOC_ATTRS = {
    "proto": attr.label(providers = [ProtoInfo], mandatory = True),
    "_protoc": attr.label(default = "@com_google_protobuf//:protoc", executable = True, cfg = "exec"),
}

def _messages_impl(ctx):
    return generate_cc(ctx, [".pb.cc", ".pb.h"], "LiteProtoCc", "--cpp_out=%s")

_messages = rule(
    implementation = _messages_impl,
    attrs = PROTOC_ATTRS,
)

def cc_lite_proto_library(name, proto, **kwargs):
    """`proto` says optimize_for = LITE_RUNTIME and imports nothing."""
    _messages(name = name + "_gen", proto = proto)
    generated_cc_library(name, name + "_gen", deps = ["@com_google_protobuf//:protobuf_lite"], **kwargs)
