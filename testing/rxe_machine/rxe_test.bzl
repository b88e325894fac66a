"""rxe_test: tests that run in a machine with Soft-RoCE devices. README.md explains it."""

# Of the host, beside the tests' own limits: starting QEMU, the boot and the end, on a busy machine.
_OVERHEAD_SECONDS = 150
_TIMEOUTS = [("moderate", 300), ("long", 900), ("eternal", 3600)]

def _timeout_for(seconds):
    for name, limit in _TIMEOUTS:
        if seconds <= limit:
            return name
    fail("an rxe_test may not take %d s; give it fewer tests or a lower limit_seconds" % seconds)

def rxe_test(
        name,
        tests,
        devices = 2,
        memory_mib = 1024,
        limit_seconds = 60,
        mtu = 9000,
        link_rate = "",
        netem = "",
        data = [],
        tags = [],
        **kwargs):
    """Boots the machine once, runs `tests` in it one after another, and shows each one's result by name.

    Args:
      name: of the test.
      tests: executables: cc_test, cc_binary, sh_test, ... Those that are of no use elsewhere are tagged "manual".
      devices: rxe0, rxe1, ...: how many.
      memory_mib: of the machine. Files that tests write are in it, too.
      limit_seconds: a test that runs longer is ended, and has failed; the others run on.
      mtu: of the network devices.
      link_rate: caps each device's link in both directions, as in "1gbit"; none by default.
      netem: delay and loss of what each device sends, as tc-netem(8) takes it; none by default.
      data: files that tests need beside their own.
      tags: as everywhere. "exclusive" is added, since the emulated processors take both cores, and "no-sanitizer".
      **kwargs: passed to the test rule (visibility, ...).
    """
    options = {
        "devices": devices,
        "memory-mib": memory_mib,
        "limit-seconds": limit_seconds,
        "mtu": mtu,
    }
    if link_rate:
        options["link-rate"] = link_rate
    if netem:
        options["netem"] = netem
    native.sh_test(
        name = name,
        srcs = ["//testing/rxe_machine:rxe_machine.sh"],
        args = ["'--%s=%s'" % item for item in options.items()] + ["$(rootpath %s)" % test for test in tests],
        data = ["//testing/rxe_machine:machine"] + tests + data,
        # Bazel's own clock must not end the test before the machine can say what hung.
        timeout = _timeout_for(_OVERHEAD_SECONDS + limit_seconds * len(tests)),
        tags = tags + [
            "exclusive",
            "no-sanitizer",  # under emulation it takes minutes what takes seconds
        ],
        **kwargs
    )
