#include "th/client_flags/connection_flags.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/quantity.h"
#include "th/monitoring/host_name.h"
#include "th/status/status_macros.h"
#include "th/topology/location.h"

namespace th {
namespace {

using QuantityParser = absl::StatusOr<uint64_t> (*)(absl::string_view);

constexpr DurationRange kConnectTimeouts = {absl::Milliseconds(100), absl::Hours(1)};
constexpr DurationRange kPreemptGraces = {absl::ZeroDuration(), absl::Hours(24)};

constexpr char kTcp[] = "tcp", kIbverbs[] = "ibverbs";

CLI::Option* AddQuantityFlag(CLI::App* app, const std::string& name,
                             const std::function<void(uint64_t)>& take, QuantityParser parse,
                             const std::string& help) {
  return app->add_option_function<std::string>(
      name,
      [name, take, parse](const std::string& text) {
        const absl::StatusOr<uint64_t> parsed = parse(text);
        if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
        take(*parsed);
      },
      help);
}

void AddOptionalByteSizeFlag(CLI::App* app, const std::string& name, std::optional<uint64_t>* bytes,
                             const std::string& help) {
  AddQuantityFlag(
      app, name, [bytes](uint64_t parsed) { *bytes = parsed; }, &ParseByteSize, help)
      ->type_name("BYTES");
}

bool Includes(const std::vector<std::string>& transports, const std::string& name) {
  return transports.empty() || absl::c_linear_search(transports, name);
}

absl::Status CheckTransports(const std::vector<std::string>& transports) {
  for (auto each = transports.begin(); each != transports.end(); ++each) {
    if (std::count(transports.begin(), each, *each) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--transports names ", *each, " twice; name each once, the best first"));
  }
  return absl::OkStatus();
}

// An adapter reads this process's memory without asking how much has gone already.
absl::Status CheckRate(const MemberFlags& flags) {
  if (flags.uplink_bytes_per_second == 0) return absl::OkStatus();
  if (!Includes(flags.transports, kTcp)) {
    return absl::InvalidArgumentError(
        "--rate has no effect without tcp among the --transports: it caps nothing else; leave one "
        "of the two out");
  }
  if (flags.transports.empty() || !Includes(flags.transports, kIbverbs)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--rate cannot cap ibverbs, over which adapters read this process's memory by themselves: "
      "leave ibverbs out of --transports, or give no --rate");
}

absl::Status CheckRdma(const MemberFlags& flags) {
  const char* const flag = !flags.rdma_devices.empty() ? "--rdma-devices"
                           : flags.rdma_registered_limit_bytes.has_value()
                               ? "--rdma-registered-limit"
                               : nullptr;
  if (flag != nullptr && !Includes(flags.transports, kIbverbs)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag,
                     " has no effect without ibverbs among the --transports: name ibverbs "
                     "there, or leave ",
                     flag, " out"));
  }
  if (flags.rdma_registered_limit_bytes == 0) {
    return absl::InvalidArgumentError(
        "--rdma-registered-limit 0 lets ibverbs register nothing: give a limit like 200GiB, or "
        "--transports without ibverbs");
  }
  return absl::OkStatus();
}

// The client's names of its options, and the flags that set them.
constexpr std::pair<absl::string_view, absl::string_view> kFlagOfOption[] = {
    {"data_address", "--data-address"},
    {"data_threads", "--data-threads"},
    {"uplink_bytes_per_second", "--rate"},
    {"transports", "--transports"},
    {"strict_transport", "--transport-strict"},
    {"attach_limit_bytes", "--attach-limit"},
    {"rdma_devices", "--rdma-devices"},
    {"rdma_registered_limit_bytes", "--rdma-registered-limit"},
    {"offload_limit_bytes", "--offload-limit"},
    {"staging_limit_bytes", "--staging-limit"}};

std::string InFlags(absl::string_view text) {
  std::string reported(text);
  for (const auto& [option, flag] : kFlagOfOption) {
    reported = absl::StrReplaceAll(reported, {{absl::StrCat("the option ", option), flag},
                                              {absl::StrCat("option ", option), flag}});
  }
  return reported;
}

// The same check of a flag of `app` that may come from the environment or a file (config_file.h).
// Whoever gave no flag is told where the value comes from. A command that is not called has no
// value to check, though the library has it take the variable.
CLI::Validator OrOf(const CLI::App* app, const std::string& variable, CLI::Validator check) {
  const std::string shown = check.get_description();
  return CLI::Validator(
      [app, variable, check = std::move(check)](std::string& text) {
        if (app->get_parent() != nullptr && !app->parsed()) return std::string();
        std::string why = check(text);
        const char* const set = std::getenv(variable.c_str());
        if (!why.empty() && set != nullptr && set == text) {
          absl::StrAppend(&why, " (", variable,
                          " of the environment, or the configuration file; th config says which)");
        }
        return why;
      },
      shown);
}

}  // namespace

std::string GroupOfThisProcess(const std::string& what) {
  return absl::StrCat(what, "-", HostName(), "-", getpid());
}

absl::StatusOr<std::unique_ptr<Controller>> ConnectionFlags::Connect() const {
  return Controller::Connect(
      {.server = server, .run = run, .model = model, .connect_timeout = connect_timeout});
}

void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags) {
  app->add_option("--server", flags->server,
                  "HOST:PORT of the reference server, several of one cluster with commas, or "
                  "file:PATH of a file with them, as tensorhub_server --address-file writes it")
      ->envname("TH_SERVER")
      ->check(OrOf(app, "TH_SERVER", IsServerList()))
      ->capture_default_str();
  app->add_option("--run", flags->run, "the run that the model belongs to")
      ->envname("TH_RUN")
      ->check(OrOf(app, "TH_RUN", IsName("run")))
      ->capture_default_str();
  app->add_option("--model", flags->model, "the model's name within the run")
      ->envname("TH_MODEL")
      ->check(OrOf(app, "TH_MODEL", IsName("model")))
      ->capture_default_str();
  AddDurationFlag(app, "--connect-timeout", &flags->connect_timeout, kConnectTimeouts,
                  "how long to try to reach the server, like 5s");
}

absl::StatusOr<ClientOptions> MemberFlags::ToClientOptions(
    const ConnectionFlags& connection) const {
  TH_RETURN_IF_ERROR(CheckTransports(transports));
  TH_RETURN_IF_ERROR(CheckRate(*this));
  TH_RETURN_IF_ERROR(CheckRdma(*this));
  ClientOptions options{.server = connection.server,
                        .run = connection.run,
                        .model = connection.model,
                        .group = group,
                        .offload_limit_bytes = offload_limit_bytes,
                        .join_timeout = connection.connect_timeout,
                        .data_address = data_address,
                        .data_threads = data_threads,
                        .uplink_bytes_per_second = uplink_bytes_per_second,
                        .transports = transports,
                        .attach_limit_bytes = attach_limit_bytes,
                        .rdma_devices = rdma_devices,
                        .rdma_registered_limit_bytes = rdma_registered_limit_bytes,
                        .strict_transport = strict_transport};
  if (!location.empty()) {
    TH_ASSIGN_OR_RETURN(options.location, ParseLocation(location));
  }
  return options;
}

void AddMemberFlags(CLI::App* app, MemberFlags* flags) {
  app->add_option("--group", flags->group, "the name of this group of ranks")
      ->check(IsName("group"))
      ->capture_default_str();
  app->add_option("--location", flags->location,
                  "where this process runs, like site=a,rack=r1,host=n7; what is left out is found "
                  "out or stays unknown")
      ->check(IsLocation());
  app->add_option(
         "--data-address", flags->data_address,
         "where to serve weights: an address, an interface or a network of this machine, and "
         "a port or a range of them, like eth1 or 10.1.0.0/16:4711-4720; by default the "
         "address that reaches the server, and a port that the system chooses")
      ->check(IsDataAddress());
  app->add_option("--data-threads", flags->data_threads, "threads that move weights")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddRateFlag(app, "--rate", &flags->uplink_bytes_per_second,
              "cap of the bytes that this process sends over TCP a second, like 250MB/s or 1gbit",
              "none");
  app->add_option(
         "--transports", flags->transports,
         "how weights may move, the best first, with commas: cuda_ipc (cuda; GPUs of this host "
         "take them out of each other's memory), same_host (same-host; readers on this host take "
         "them out of this process's memory), ibverbs (rdma), tcp; by default all that there are")
      ->delimiter(',')
      ->transform(IsTransport());
  AddOptionalByteSizeFlag(
      app, "--attach-limit", &flags->attach_limit_bytes,
      "arenas of this process, like 20GiB, that readers of this host may use where they lie and "
      "keep when it writes anew; 0: none; by default a quarter of the host's memory");
  app->add_option(
         "--rdma-devices", flags->rdma_devices,
         "the RDMA devices that ibverbs uses, with commas, like mlx5_0,mlx5_1, and an error "
         "if one is not there or cannot be used; by default all that can be")
      ->delimiter(',');
  AddOptionalByteSizeFlag(app, "--rdma-registered-limit", &flags->rdma_registered_limit_bytes,
                          "memory of this process, like 200GiB, that ibverbs may register with "
                          "RDMA devices; by default "
                          "1TiB");
  app->add_flag("--transport-strict", flags->strict_transport,
                "a source that cannot be read over the first of its transports that leads there is "
                "an error that names it, rather than read over a slower one: also without an RDMA "
                "device here; --transports chooses others");
}

void AddOffloadFlag(CLI::App* app, MemberFlags* flags) {
  AddByteSizeFlag(
      app, "--offload-limit", &flags->offload_limit_bytes,
      "host memory of each rank, like 20GiB, for copies: of retained versions whose last replica "
      "would go with an update, and of versions that this group brings into its site",
      "none");
}

void AddPreemptFlag(CLI::App* app, MemberFlags* flags) {
  AddDurationFlag(app, "--preempt-grace", &flags->preempt_grace, kPreemptGraces,
                  "the notice, like 30s, that SIGTERM or SIGINT gives: readers are moved to other "
                  "sources, who has none is served until it is over; a second signal ends at once");
}

absl::Status ExplainJoin(const absl::Status& joined) {
  if (absl::IsAlreadyExists(joined)) {
    return absl::Status(
        joined.code(),
        absl::StrCat(joined.message(), "; a further group takes a name of its own: --group NAME"));
  }
  return absl::Status(joined.code(), InFlags(joined.message()));
}

CLI::Option* AddDurationFlag(CLI::App* app, const std::string& name, absl::Duration* value,
                             const DurationRange& range, const std::string& help) {
  return app
      ->add_option_function<std::string>(
          name,
          [name, value, range](const std::string& text) {
            const absl::StatusOr<absl::Duration> parsed = ParseTimeSpan(text);
            if (!parsed.ok()) {
              throw CLI::ValidationError(name, std::string(parsed.status().message()));
            }
            if (*parsed < range.least || *parsed > range.most) {
              throw CLI::ValidationError(
                  name, absl::StrCat(text, " is not between ", absl::FormatDuration(range.least),
                                     " and ", absl::FormatDuration(range.most)));
            }
            *value = *parsed;
          },
          help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(*value));
}

CLI::Option* AddByteSizeFlag(CLI::App* app, const std::string& name, uint64_t* bytes,
                             const std::string& help, const std::string& shown_default) {
  return AddQuantityFlag(
             app, name, [bytes](uint64_t parsed) { *bytes = parsed; }, &ParseByteSize, help)
      ->type_name("BYTES")
      ->default_str(shown_default);
}

void AddRateFlag(CLI::App* app, const std::string& name, uint64_t* bytes_per_second,
                 const std::string& help, const std::string& shown_default) {
  AddQuantityFlag(
      app, name, [bytes_per_second](uint64_t parsed) { *bytes_per_second = parsed; }, &ParseRate,
      help)
      ->type_name("RATE")
      ->default_str(shown_default);
}

}  // namespace th
