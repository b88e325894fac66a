#include "th/worker/connection_flags.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "th/topology/location.h"
#include "th/weights/status_macros.h"
#include "th/worker/flag_checks.h"
#include "th/worker/quantity.h"

namespace th {
namespace {

using QuantityParser = absl::StatusOr<uint64_t> (*)(absl::string_view);

CLI::Option* AddQuantityFlag(CLI::App* app, const std::string& name, uint64_t* value,
                             QuantityParser parse, const std::string& help,
                             const std::string& shown_default) {
  CLI::Option* option = app->add_option_function<std::string>(
      name,
      [name, value, parse](const std::string& text) {
        const absl::StatusOr<uint64_t> parsed = parse(text);
        if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
        *value = *parsed;
      },
      help);
  return option->default_str(shown_default);
}

void AddOptionalByteSizeFlag(CLI::App* app, const std::string& name, std::optional<uint64_t>* bytes,
                             const std::string& help) {
  app->add_option_function<std::string>(
         name,
         [name, bytes](const std::string& text) {
           const absl::StatusOr<uint64_t> parsed = ParseByteSize(text);
           if (!parsed.ok()) {
             throw CLI::ValidationError(name, std::string(parsed.status().message()));
           }
           *bytes = *parsed;
         },
         help)
      ->type_name("BYTES");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> ConnectionFlags::Connect() const {
  return Controller::Connect(
      {.server = server, .run = run, .model = model, .connect_timeout = connect_timeout()});
}

void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags) {
  app->add_option("--server", flags->server,
                  "HOST:PORT of the reference server, or several of one cluster with commas")
      ->check(IsServerList())
      ->capture_default_str();
  app->add_option("--run", flags->run, "the run that the model belongs to")
      ->check(IsName("run"))
      ->capture_default_str();
  app->add_option("--model", flags->model, "the model's name within the run")
      ->check(IsName("model"))
      ->capture_default_str();
  app->add_option("--connect-timeout", flags->connect_timeout_s,
                  "seconds to try to reach the server")
      ->check(IsSeconds(0.1, 3600))
      ->capture_default_str();
}

absl::StatusOr<ClientOptions> MemberFlags::ToClientOptions(
    const ConnectionFlags& connection) const {
  ClientOptions options{.server = connection.server,
                        .run = connection.run,
                        .model = connection.model,
                        .group = group,
                        .offload_limit_bytes = offload_limit_bytes,
                        .join_timeout = connection.connect_timeout(),
                        .data_address = data_address,
                        .data_threads = data_threads,
                        .uplink_bytes_per_second = uplink_bytes_per_second,
                        .transports = transports,
                        .attach_limit_bytes = attach_limit_bytes,
                        .rdma_devices = rdma_devices,
                        .rdma_registered_limit_bytes = rdma_registered_limit_bytes,
                        .strict_transport = strict_transport};
  const bool over_tcp = transports.empty() || absl::c_linear_search(transports, "tcp");
  if (uplink_bytes_per_second > 0 && !over_tcp) {
    return absl::InvalidArgumentError(
        "--rate has no effect without tcp among the --transports: it caps nothing else");
  }
  const bool over_rdma = transports.empty() || absl::c_linear_search(transports, "ibverbs");
  if ((!rdma_devices.empty() || rdma_registered_limit_bytes.has_value()) && !over_rdma) {
    return absl::InvalidArgumentError(
        "--rdma-devices and --rdma-registered-limit have no effect without ibverbs among the "
        "--transports");
  }
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
  app->add_option("--data-address", flags->data_address,
                  "the address to serve weights on; by default the one that reaches the server")
      ->check(IsDataAddress());
  app->add_option("--data-threads", flags->data_threads, "threads that move weights")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddRateFlag(app, "--rate", &flags->uplink_bytes_per_second,
              "cap of the bytes that this process sends over TCP a second, like 250MB/s or 1gbit",
              "none");
  app->add_option(
         "--transports", flags->transports,
         "how weights may move, the best first, with commas: cuda_ipc (GPUs of this host take them "
         "out of each other's memory), same_host (readers on this host take them out of this "
         "process's memory), ibverbs (RDMA), tcp; by default all that there are")
      ->delimiter(',')
      ->check(CLI::IsMember(TransportNames()));
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
  app->add_option("--preempt-grace", flags->preempt_grace_s,
                  "seconds that SIGTERM or SIGINT gives as a notice: readers are moved to other "
                  "sources, who has none is served until then; a second signal ends at once")
      ->check(IsSeconds(0, 86'400))
      ->capture_default_str();
}

absl::Status ExplainJoin(const absl::Status& joined) {
  if (!absl::IsAlreadyExists(joined)) return joined;
  return absl::Status(
      joined.code(),
      absl::StrCat(joined.message(), "; a further group takes a name of its own: --group NAME"));
}

CLI::Option* AddByteSizeFlag(CLI::App* app, const std::string& name, uint64_t* bytes,
                             const std::string& help, const std::string& shown_default) {
  return AddQuantityFlag(app, name, bytes, &ParseByteSize, help, shown_default);
}

void AddRateFlag(CLI::App* app, const std::string& name, uint64_t* bytes_per_second,
                 const std::string& help, const std::string& shown_default) {
  AddQuantityFlag(app, name, bytes_per_second, &ParseRate, help, shown_default);
}

}  // namespace th
