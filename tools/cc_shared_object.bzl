"""cc_shared_object: a shared object with a C interface, fit to be loaded into other people's processes."""

def cc_shared_object(name, srcs, exports, deps = [], linkopts = [], **kwargs):
    """Links `srcs` and all they need into one shared object that shows nothing but its C interface.

    Every C++ symbol inside (Abseil, gRPC, protobuf, libstdc++) is local, so another copy in the process does not
    clash with it. Only libc, libm and libgcc_s are needed from the machine.

    Args:
      name: the file, as in "libtensorhub.so".
      srcs: the sources that define the exported functions; a function in a library of `deps` would be dropped by the
        linker because nothing refers to it.
      exports: patterns of the symbols to export, as in ["th_*"].
      deps: cc_library targets.
      linkopts: more of them.
      **kwargs: for cc_binary.
    """
    native.genrule(
        name = name + ".exports",
        outs = [name + ".lds"],
        cmd = "echo '{ global: %s local: *; };' >$@" % " ".join([e + ";" for e in exports]),
        visibility = ["//visibility:private"],
    )
    native.cc_binary(
        name = name,
        srcs = srcs,
        additional_linker_inputs = [name + ".lds"],
        linkopts = [
            "-Wl,--version-script,$(location %s.lds)" % name,
            "-Wl,-soname,%s" % name,
            "-Wl,--gc-sections",
            "-Wl,--exclude-libs,ALL",
        ] + select({
            # The sanitizer's own symbols come from the executable.
            str(Label("//tools/sanitizers:on")): [],
            "//conditions:default": ["-Wl,-z,defs"],
        }) + linkopts,
        linkshared = True,
        deps = deps,
        **kwargs
    )
