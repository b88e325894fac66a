"""The rules of who may depend on whom. check.py enforces them; README.md explains them."""

# From the bottom to the top: a package may depend only on packages before it.
ORDER = [
    "th/status",
    "th/text",
    "th/identifiers",
    "th/weights",
    "th/topology",
    "th/protocol",
    "th/mutability_contract",
    "th/scheduler",
    "th/registry_state",
    "th/reference_registry",
    "th/pipeline_replicator",
    "th/worker_session",
    "th/simulator",
    "th/proto",
    "th/wire",
    "th/memory",
    "th/transfer",
    "th/coordination",
    "th/processes",
    "th/command_line",
    "th/monitoring",
    "th/server",
    "th/client",
    "th/c_interface",
    "th/python",
    "th/client_flags",
    "th/worker",
    "th/doctor",
    "th/controlled_rank",
    "th/bench",
    "th/scenario_runs",
    "th/demo",
    "th/cli",
    "th/programs",
]

# The packages of tests' things, each with the highest package that it may use; None: none. Only tests of that package and
# of those above it may use it in turn. A program that is only run (`data`) counts for nothing: it is not linked.
TESTING = {
    "testing": None,
    "testing/abi": "th/c_interface",
    "testing/binaries": None,
    "testing/cluster": "th/controlled_rank",
    "testing/end_to_end": "th/controlled_rank",
    "testing/fake_cuda": "th/memory",
    "testing/fresh_seeds": "th/simulator",
    "testing/fuzz": None,
    "testing/peers": None,
    "testing/program_run": "th/command_line",
    "testing/rxe_machine": None,
}

# Outside of the order, with the packages that may depend on them.
USED_ONLY_BY = {
    # The commit changes with every commit, and everything above it is linked again.
    "th/version": ["th/server", "th/worker", "th/cli", "testing/fresh_seeds"],
}

# No socket, thread, lock, clock, random source, RPC or hardware: a decision must follow from its inputs alone.
PURE = [
    "th/status",
    "th/text",
    "th/identifiers",
    "th/weights",
    "th/topology",
    "th/protocol",
    "th/mutability_contract",
    "th/scheduler",
    "th/registry_state",
    "th/reference_registry",
    "th/pipeline_replicator",
    "th/worker_session",
    "th/simulator",
]

# Pure but for one thing that is their purpose: {package: its name in IMPURE_CODE}.
PURE_BUT_FOR = {
    "th/wire": "RPC or protobuf",
}

# All that a pure package may use from outside of th/. A pattern ends in "*".
PURE_MAY_USE = [
    "//tools/mutation:mutation",
    "@com_github_cyan4973_xxhash//:xxhash",
    "@com_github_nlohmann_json//:json",
    "@com_google_absl//absl/algorithm*",
    "@com_google_absl//absl/base:config",
    "@com_google_absl//absl/base:core_headers",
    "@com_google_absl//absl/cleanup*",
    "@com_google_absl//absl/container*",
    "@com_google_absl//absl/functional*",
    "@com_google_absl//absl/hash*",
    "@com_google_absl//absl/memory*",
    "@com_google_absl//absl/meta*",
    "@com_google_absl//absl/numeric*",
    "@com_google_absl//absl/status*",
    "@com_google_absl//absl/strings*",
    # For absl::Time and absl::Duration; the clock beside them is refused in the sources.
    "@com_google_absl//absl/time:time",
    "@com_google_absl//absl/types*",
    "@com_google_absl//absl/utility*",
    # Hashes and message authentication codes.
    "@openssl//:crypto",
]

# What a pure package's sources may not say, as regular expressions over code without comments and strings.
IMPURE_CODE = {
    "a thread": r"#\s*include\s*<(thread|future|stop_token|pthread\.h|semaphore\.h|semaphore|latch|barrier)>|\bpthread_\w+"
                r"|\bstd::(jthread|thread|async)\b",
    "a lock": r"#\s*include\s*<(mutex|shared_mutex|condition_variable)>|#\s*include\s*\"absl/synchronization/"
              r"|\babsl::(Mutex|CondVar|Notification|BlockingCounter)\b|\bstd::(recursive_|shared_|timed_)?mutex\b",
    "a clock": r"#\s*include\s*<(ctime|time\.h|sys/time\.h)>|#\s*include\s*\"absl/time/clock\.h\""
               r"|\babsl::(Now|GetCurrentTimeNanos|SleepFor)\b|_clock::now\b|\b(clock_gettime|gettimeofday)\s*\("
               r"|(?<![\w.>:])time\s*\(\s*(NULL|nullptr|0|&)",
    "a random source": r"#\s*include\s*<(random|sys/random\.h)>|#\s*include\s*\"absl/random/|#\s*include\s*[<\"]openssl/rand\.h"
                       r"|\babsl::(BitGen|InsecureBitGen)\b|\bstd::random_device\b|(?<![\w.>:])s?rand\s*\("
                       r"|\b(getentropy|getrandom|arc4random\w*|RAND_bytes)\s*\(",
    "a socket": r"#\s*include\s*<(sys/socket|sys/un|netinet/\w+|arpa/inet|netdb|poll|sys/epoll|liburing)\.h>",
    "RPC or protobuf": r"#\s*include\s*[<\"](grpc|grpcpp|google/protobuf)/|\.pb\.h\"",
    "hardware": r"#\s*include\s*[<\"](infiniband|rdma|cuda\w*)[/.]",
}

# Targets beside the facade that many may use, with the reason. All others are private, or shown to their own
# subfolders, to //testing, or to one package by its name.
ALSO_VISIBLE = {
    "//th/command_line:quantity": "how sizes and durations are written, the same in all commands",
    "//th/proto:tensorhub_cc_grpc": "messages with the service",
    "//th/proto:tensorhub_cc_proto": "messages without the service, for code that must not link gRPC's",
    "//th/proto:tensorhub_proto": "the schema itself; the facade is the generated code",
    "//th/transfer:monotonic_clock": "one clock for the data plane, the client's timers and what the commands measure",
    "//th/wire:grpc_callback_queue": "for whoever makes gRPC channels and servers, not for users of the facade",
    "//th/wire:grpc_status": "drags gRPC in, which users of the facade need not",
}

# Where the facade is not a target named after the folder.
FACADES = {
    "th/cli": "//th/cli:th",  # the command itself
}

# The most lines of production code (.h and .cc of what is no test) that a package may have: one can still see into it.
MAX_LINES = 10_000
MAX_LINES_OF = {
    "th/cli": 4_500,  # commands and nothing else
}
