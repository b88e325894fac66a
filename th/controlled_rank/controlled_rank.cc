#include "th/controlled_rank/controlled_rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/command_line/process_setup.h"
#include "th/processes/resident_memory.h"
#include "th/protocol/messages.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

// How long the publisher's sums may take; a shard of a terabyte needs minutes.
constexpr absl::Duration kSealTimeout = absl::Minutes(10);
constexpr absl::Duration kUpdateTimeout = absl::Minutes(10);

absl::string_view OutcomeName(UpdateOutcome outcome) {
  switch (outcome) {
    case UpdateOutcome::kMoved:
      return "moved";
    case UpdateOutcome::kAlreadyThere:
      return "already there";
    case UpdateOutcome::kNotAvailable:
      return "not available";
    case UpdateOutcome::kNone:
      break;
  }
  return "none";
}

json SourceToJson(const SourceShare& source) {
  return {{"name", source.name},           {"peer", source.peer},
          {"transport", source.transport}, {"passed_over", source.passed_over},
          {"bytes", source.bytes},         {"seconds", absl::ToDoubleSeconds(source.active)},
          {"failure", source.failure}};
}

json ResultToJson(const UpdateResult& result) {
  json sources = json::array();
  for (const SourceShare& source : result.sources) sources.push_back(SourceToJson(source));
  return {{"outcome", OutcomeName(result.outcome)},
          {"version", result.info.ToString()},
          {"event_id", result.event.ToString()},
          {"reason", static_cast<int>(result.reason)},
          {"stall_seconds", absl::ToDoubleSeconds(result.stall())},
          {"bytes", result.bytes_received},
          {"bytes_unchanged", result.bytes_unchanged},
          {"reroutes", result.reroutes},
          {"rerouted_bytes", result.rerouted_bytes},
          {"reread_bytes", result.reread_bytes},
          {"corrupt_segments", result.corrupt_segments},
          {"peak_extra_bytes", result.peak_extra_bytes},
          {"packing_overhead_bytes", result.packing_overhead_bytes},
          {"sources", std::move(sources)}};
}

MemoryStream StreamOf(const RankWeights& weights) {
  std::vector<iovec> pieces;
  for (const Tensor& tensor : weights.tensors()) {
    if (tensor.alias_of.empty() && tensor.bytes > 0) {
      pieces.push_back({.iov_base = tensor.data, .iov_len = tensor.bytes});
    }
  }
  return MemoryStream(std::move(pieces));
}

absl::Duration SecondsOr(const json& command, const char* key, absl::Duration otherwise) {
  return command.contains(key) ? absl::Seconds(command.at(key).get<double>()) : otherwise;
}

// The same clock in all processes of this machine.
double SecondsOf(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// The result of `verb`, with the moments of its call.
absl::StatusOr<json> Timed(absl::FunctionRef<absl::StatusOr<UpdateResult>()> verb) {
  const absl::Time begin = MonotonicNow();
  TH_ASSIGN_OR_RETURN(const UpdateResult result, verb());
  const absl::Time end = MonotonicNow();
  json answer = ResultToJson(result);
  answer["started_s"] = SecondsOf(begin);
  answer["ended_s"] = SecondsOf(end);
  answer["seconds"] = absl::ToDoubleSeconds(end - begin);
  return answer;
}

ClientOptions OptionsOf(const json& command) {
  return {.server = command.at("server"),
          .run = command.at("run"),
          .model = command.at("model"),
          .group = command.at("group"),
          .rank = command.at("rank"),
          .ranks = command.at("ranks"),
          .location = {.site = command.value("site", ""),
                       .rack = command.value("rack", ""),
                       .host = command.value("host", "")},
          .data_threads = command.at("data_threads"),
          .connections_per_source = command.at("connections"),
          .uplink_bytes_per_second = command.at("rate"),
          .transports = command.at("transports").get<std::vector<std::string>>()};
}

}  // namespace

json ControlledRank::Answer(const json& command) {
  try {
    Result result = Do(command);
    return result.ok() ? *std::move(result) : ErrorToJson(result.status());
  } catch (const json::exception& error) {  // a field is missing or of another type
    return ErrorToJson(absl::InvalidArgumentError(error.what()));
  }
}

ControlledRank::Result ControlledRank::Do(const json& command) {
  using Method = Result (ControlledRank::*)(const json&);
  static const auto& methods =
      *new absl::flat_hash_map<std::string, Method>{{"join", &ControlledRank::Join},
                                                    {"change", &ControlledRank::Change},
                                                    {"publish", &ControlledRank::Publish},
                                                    {"unpublish", &ControlledRank::Unpublish},
                                                    {"rollback", &ControlledRank::RollBack},
                                                    {"update", &ControlledRank::Update},
                                                    {"stage", &ControlledRank::Stage},
                                                    {"apply", &ControlledRank::Apply},
                                                    {"sum", &ControlledRank::Checksum},
                                                    {"sums", &ControlledRank::Checksums},
                                                    {"stats", &ControlledRank::Stats},
                                                    {"scribble", &ControlledRank::Scribble},
                                                    {"hoard", &ControlledRank::Hoard},
                                                    {"copy", &ControlledRank::Copy},
                                                    {"evict", &ControlledRank::Evict},
                                                    {"meter-start", &ControlledRank::MeterStart},
                                                    {"meter-read", &ControlledRank::MeterRead},
                                                    {"probe-send", &ControlledRank::ProbeSend},
                                                    {"probe-read", &ControlledRank::ProbeRead},
                                                    {"probe-end", &ControlledRank::ProbeEnd},
                                                    {"share-copy", &ControlledRank::ShareCopy},
                                                    {"read-copy", &ControlledRank::ReadCopy},
                                                    {"drop-copy", &ControlledRank::DropCopy},
                                                    {"copy-gpu", &ControlledRank::CopyGpu},
                                                    {"leave", &ControlledRank::Leave}};
  const std::string name = command.at("do");
  const auto method = methods.find(name);
  if (method == methods.end()) return absl::InvalidArgumentError(absl::StrCat("no command ", name));
  if (name != "join" && client_ == nullptr)
    return absl::FailedPreconditionError("join comes first");
  return (this->*method->second)(command);
}

ControlledRank::Result ControlledRank::Join(const json& command) {
  TH_ASSIGN_OR_RETURN(ShardChoice choice, ShardChoiceFromJson(command.at("weights")));
  TH_ASSIGN_OR_RETURN(weights_, RankWeights::Allocate(std::move(choice)));
  if (command.at("load").get<bool>()) TH_RETURN_IF_ERROR(weights_->Load());
  if (command.contains("gpu")) {
    // Before the client: a process has its GPUs' memory for weights once the driver is loaded.
    TH_ASSIGN_OR_RETURN(on_gpu_, DeviceWeights::Allocate(weights_->tensors(), command.at("gpu")));
    TH_RETURN_IF_ERROR(Upload());
  }
  ClientOptions options = OptionsOf(command);
  options.offload_limit_bytes = command.value("copies", uint64_t{0}) * weights_->bytes();
  options.staging_limit_bytes = command.value("stages", false) ? weights_->bytes() : 0;
  TH_ASSIGN_OR_RETURN(client_, Client::Join(std::move(options)));
  RegisterOptions registered;
  registered.checksums = command.value("checksums", true);
  TH_ASSIGN_OR_RETURN(buffer_, client_->Register(Registered(), registered));
  return json{{"bytes", buffer_.bytes()}, {"tensors", weights_->tensors().size()}};
}

const std::vector<Tensor>& ControlledRank::Registered() const {
  return on_gpu_ == nullptr ? weights_->tensors() : on_gpu_->tensors();
}

absl::Status ControlledRank::Download() {
  return on_gpu_ == nullptr ? absl::OkStatus() : on_gpu_->Download();
}

absl::Status ControlledRank::Upload() {
  return on_gpu_ == nullptr ? absl::OkStatus() : on_gpu_->Upload();
}

absl::Status ControlledRank::RefuseOnGpu(const json& command) const {
  if (on_gpu_ == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(command.at("do").get<std::string>(),
                                                    " takes weights in host memory, not on a GPU"));
}

ControlledRank::Result ControlledRank::Change(const json& command) {
  weights_->ChangeTo(command.at("content"));
  TH_RETURN_IF_ERROR(Upload());
  return json::object();
}

ControlledRank::Result ControlledRank::Publish(const json& command) {
  const std::string label = command.at("label");
  const absl::Time begin = MonotonicNow();
  TH_RETURN_IF_ERROR(buffer_.Publish(label));
  const absl::Duration published = MonotonicNow() - begin;
  TH_ASSIGN_OR_RETURN(const PublishResult result, buffer_.AwaitPublished());
  TH_RETURN_IF_ERROR(buffer_.AwaitSealed(kSealTimeout));
  return json{{"version", result.version.ToString()},
              {"publish_seconds", absl::ToDoubleSeconds(published)},
              {"sealed_seconds", absl::ToDoubleSeconds(MonotonicNow() - begin)}};
}

ControlledRank::Result ControlledRank::Unpublish(const json& command) {
  UnpublishOptions options;
  options.drain_timeout = SecondsOr(command, "drain_seconds", options.drain_timeout);
  const absl::Time begin = MonotonicNow();
  TH_RETURN_IF_ERROR(buffer_.Unpublish(options));
  return json{{"seconds", absl::ToDoubleSeconds(MonotonicNow() - begin)}};
}

ControlledRank::Result ControlledRank::RollBack(const json& command) {
  const std::string to = command.at("to"), key = command.at("key");
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(to));
  TH_ASSIGN_OR_RETURN(const VersionInfo version, client_->RollBack(selector, key));
  return json{{"version", version.ToString()}};
}

ControlledRank::Result ControlledRank::Update(const json& command) {
  const std::string version = command.at("version");
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(version));
  UpdateOptions options{.timeout = SecondsOr(command, "timeout_seconds", kUpdateTimeout)};
  TH_ASSIGN_OR_RETURN(options.when_seeding,
                      ParseWhenSeeding(command.value("when_seeding", "wait")));
  options.in_place = command.value("in_place", false);
  options.on_progress = ProgressWriter();
  return Timed([&] { return buffer_.Update(selector, std::move(options)); });
}

ControlledRank::Result ControlledRank::Stage(const json& command) {
  const std::string version = command.at("version");
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(version));
  StageOptions options{.timeout = SecondsOr(command, "timeout_seconds", kUpdateTimeout)};
  TH_ASSIGN_OR_RETURN(options.when_seeding,
                      ParseWhenSeeding(command.value("when_seeding", "wait")));
  options.on_progress = ProgressWriter();
  return Timed([&] { return buffer_.Stage(selector, std::move(options)); });
}

ControlledRank::Result ControlledRank::Apply(const json& command) {
  const ApplyOptions options{.timeout = SecondsOr(command, "timeout_seconds", kUpdateTimeout)};
  return Timed([&] { return buffer_.Apply(options); });
}

std::function<void(const UpdateProgress&)> ControlledRank::ProgressWriter() const {
  return [events = events_](const UpdateProgress& progress) {
    events->Write({{"event", "progress"},
                   {"at_s", SecondsOf(MonotonicNow())},
                   {"version", progress.version.ToString()},
                   {"bytes", progress.bytes_received},
                   {"total", progress.bytes_total},
                   {"source", progress.source}});
  };
}

ControlledRank::Result ControlledRank::Checksum(const json& command) {
  TH_RETURN_IF_ERROR(Download());
  const TensorChecksums checksums = weights_->Checksum();
  return json{{"sum", Combine(checksums).ToHex()}, {"tensors", checksums.size()}};
}

ControlledRank::Result ControlledRank::Checksums(const json& command) {
  TH_RETURN_IF_ERROR(Download());
  json checksums = json::object();
  for (const auto& [name, checksum] : weights_->Checksum()) checksums[name] = checksum.ToHex();
  return json{{"sums", std::move(checksums)}};
}

ControlledRank::Result ControlledRank::Stats(const json& command) {
  TH_ASSIGN_OR_RETURN(const uint64_t resident, ResidentBytes(getpid()));
  return json{{"bytes_sent", buffer_.bytes_sent()},
              {"control_bytes", client_->control_bytes()},
              {"live_bytes", buffer_.bytes()},
              {"resident_bytes", resident}};
}

ControlledRank::Result ControlledRank::Scribble(const json& command) {
  TH_RETURN_IF_ERROR(Download());
  weights_->Scribble();
  TH_RETURN_IF_ERROR(Upload());
  return json::object();
}

ControlledRank::Result ControlledRank::Hoard(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  for (const Tensor& tensor : weights_->tensors()) {
    if (!tensor.alias_of.empty()) continue;
    const auto* from = static_cast<const char*>(tensor.data);
    hoarded_.insert(hoarded_.end(), from, from + tensor.bytes);
  }
  return json{{"bytes", hoarded_.size()}};
}

ControlledRank::Result ControlledRank::Copy(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  copy_.resize(weights_->bytes());  // the memory is there before the time counts
  const absl::Time begin = MonotonicNow();
  char* to = copy_.data();
  for (const Tensor& tensor : weights_->tensors()) {
    if (!tensor.alias_of.empty() || tensor.bytes == 0) continue;
    std::memcpy(to, tensor.data, tensor.bytes);
    to += tensor.bytes;
  }
  return json{{"seconds", absl::ToDoubleSeconds(MonotonicNow() - begin)}};
}

ControlledRank::Result ControlledRank::Evict(const json& command) {
  // Written and read once: what was cached before is not any more. Freed again: it is not the
  // process's to keep.
  std::vector<uint64_t> other(command.at("bytes").get<uint64_t>() / sizeof(uint64_t));
  uint64_t value = 1;
  for (uint64_t& word : other) word = value = value * 6364136223846793005u + 1;
  for (uint64_t word : other) value ^= word;
  return json{{"value", value}};  // so that the reading is not optimised away
}

ControlledRank::Result ControlledRank::MeterStart(const json& command) {
  TH_ASSIGN_OR_RETURN(meter_, ProcessMeter::Start());
  return json::object();
}

ControlledRank::Result ControlledRank::MeterRead(const json& command) {
  if (!meter_.has_value()) return absl::FailedPreconditionError("meter-start comes first");
  TH_ASSIGN_OR_RETURN(const ProcessCost cost, meter_->Read());
  return json{{"cpu_seconds", absl::ToDoubleSeconds(cost.processor)},
              {"growth_bytes", cost.growth_bytes}};
}

ControlledRank::Result ControlledRank::ProbeSend(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  probe_memory_.emplace(StreamOf(*weights_));
  TH_ASSIGN_OR_RETURN(probe_, RawProbeSender::Start(&*probe_memory_,
                                                    {.readers = command.at("readers"),
                                                     .connections = command.at("connections")},
                                                    command.value("host", kProbeLoopback)));
  return json{{"port", probe_->port()}};
}

ControlledRank::Result ControlledRank::ProbeRead(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  const MemoryStream memory = StreamOf(*weights_);
  const absl::Time begin = MonotonicNow();
  TH_ASSIGN_OR_RETURN(const std::string congestion_control,
                      ReadRawProbe(memory, command.at("port"), command.at("connections"),
                                   command.value("host", kProbeLoopback)));
  return json{{"started_s", SecondsOf(begin)},
              {"ended_s", SecondsOf(MonotonicNow())},
              {"congestion_control", congestion_control}};
}

ControlledRank::Result ControlledRank::ProbeEnd(const json& command) {
  if (probe_ == nullptr) return absl::FailedPreconditionError("no probe is under way");
  TH_RETURN_IF_ERROR(probe_->Await());
  probe_.reset();
  return json::object();
}

ControlledRank::Result ControlledRank::ShareCopy(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  TH_ASSIGN_OR_RETURN(shared_, SharedCopy::Of(StreamOf(*weights_)));
  return json{{"path", shared_->path()}};
}

// Mapping is not timed: a transport maps once, and copies again and again.
ControlledRank::Result ControlledRank::ReadCopy(const json& command) {
  TH_RETURN_IF_ERROR(RefuseOnGpu(command));
  const MemoryStream memory = StreamOf(*weights_);
  TH_ASSIGN_OR_RETURN(const MappedCopy mapped,
                      MappedCopy::Open(command.at("path"), memory.bytes()));
  const absl::Time begin = MonotonicNow();
  TH_RETURN_IF_ERROR(mapped.CopyTo(memory, command.at("threads")));
  return json{{"started_s", SecondsOf(begin)}, {"ended_s", SecondsOf(MonotonicNow())}};
}

ControlledRank::Result ControlledRank::DropCopy(const json& command) {
  shared_.reset();
  return json::object();
}

ControlledRank::Result ControlledRank::CopyGpu(const json& command) {
  if (on_gpu_ == nullptr) return absl::FailedPreconditionError("the weights are not on a GPU");
  TH_ASSIGN_OR_RETURN(const DeviceWeights::CopyTime time, on_gpu_->CopyFromGpu(command.at("from")));
  return json{{"started_s", SecondsOf(time.begin)}, {"ended_s", SecondsOf(time.end)}};
}

ControlledRank::Result ControlledRank::Leave(const json& command) {
  buffer_ = WeightBuffer();
  TH_RETURN_IF_ERROR(client_->Leave());
  client_.reset();
  return json::object();
}

void ControlledRank::LeaveNow() {
  if (client_ != nullptr) (void)client_->Leave();
}

int RunControlledRank(int, char** argv) {
  SetUpProcess(argv[0]);
  JsonLineWriter out(STDOUT_FILENO);
  ControlledRank rank(&out);
  std::thread update;  // or stage, or apply: one at a time; only "leave" does not wait for it
  const auto end_update = [&update] {
    if (update.joinable()) update.join();
  };
  bool heard = true;
  for (std::string line; heard && std::getline(std::cin, line);) {
    const json command = ParseLine(line);
    const std::string name = command.is_object() ? command.value("do", "") : "";
    if (name == "leave" && update.joinable()) rank.LeaveNow();
    end_update();
    if (name == "update" || name == "stage" || name == "apply") {
      update = std::thread([&rank, &out, command] { out.Write(rank.Answer(command)); });
    } else if (command.is_discarded()) {
      heard = out.Write(ErrorToJson(absl::InvalidArgumentError("no JSON object")));
    } else {
      heard = out.Write(rank.Answer(command));
    }
  }
  end_update();
  return 0;
}

}  // namespace th
