#include "th/bench/registry_bench.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "th/command_line/text_table.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

// Virtual time between two events: 100,000 of them are far from a lease.
constexpr absl::Duration kStep = absl::Microseconds(1);
constexpr absl::Duration kOperationTimeout = absl::Seconds(60);
constexpr absl::Duration kReportEvery = absl::Seconds(2);
constexpr uint64_t kSegments = 64;  // of a shard
constexpr uint32_t kGroupsPerRack = 8;
constexpr uint32_t kTrainer = 0;  // the group that publishes
constexpr BufferId kBuffer(1);

enum class Operation : size_t {
  kJoin,
  kRegister,
  kPublish,
  kPublishLast,
  kSeal,
  kUpdate,
  kReady,
  kProgress,
  kSourceFailed,
  kDone,
  kDoneLast,
  kUnpublish,
  kDrained,
  kDrainedLast,
  kDisconnect,
  kRejoin,
  kLeave,
  kJoinAgain,
  kHeartbeat,
  kLeaseTick,
  kResolve,
  kCount
};

struct OperationName {
  const char* key;
  const char* about;
};
constexpr std::array<OperationName, static_cast<size_t>(Operation::kCount)> kNames = {{
    {"join", "a new worker joins"},
    {"register", "it registers its buffer"},
    {"publish", "a rank publishes"},
    {"publish_last", "the last rank publishes: the group has published"},
    {"seal", "a rank tells its shard's root"},
    {"update", "a rank asks for the latest version"},
    {"ready", "a rank is ready to fill, and gets its source"},
    {"progress", "a rank tells which segments it has"},
    {"source_failed", "a rank reports its source, and gets another"},
    {"done", "a rank's fill is done"},
    {"done_last", "the last rank's fill is done: the group has moved"},
    {"unpublish", "a rank unpublishes"},
    {"drained", "a rank's buffer is drained"},
    {"drained_last", "the last rank's is: the group has unpublished"},
    {"disconnect", "a worker's stream breaks"},
    {"rejoin", "it comes back with what it holds"},
    {"leave", "a worker leaves"},
    {"join_again", "another takes its place: the group counts anew"},
    {"heartbeat", "a worker says that it lives"},
    {"lease_tick", "a lease is looked at"},
    {"resolve", "a controller asks which version is the latest"},
}};

struct FleetRank {
  uint32_t group = 0;
  uint32_t rank = 0;
  ConnectionId connection;
  Joined joined;
  OperationNumber number;
  BufferGeneration generation;
  VersionInfo version;  // that the last operation named
  AssignmentId assignment;
  std::optional<AssignedSource> source;
};

// The processor time of the calling thread: what others do on this machine meanwhile does not
// count.
absl::Duration ThreadTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

ShardLayout LayoutOf(uint32_t rank) {
  ShardLayout::Spec spec{.segment_bytes = kMinSegmentBytes};
  spec.tensors.push_back({.name = absl::StrCat("rank-", rank),
                          .dtype = DType::kU8,
                          .shape = {static_cast<int64_t>(kSegments * kMinSegmentBytes)}});
  return ShardLayout::Build(std::move(spec)).value();  // constants, but for a number in the name
}

class RegistryBench {
 public:
  explicit RegistryBench(const RegistryBenchOptions& options)
      : options_(options),
        groups_(std::max(2u, (options.workers + options.ranks - 1) / options.ranks)) {
    layouts_.reserve(options.ranks);
    for (uint32_t rank = 0; rank < options.ranks; ++rank) layouts_.push_back(LayoutOf(rank));
  }

  absl::StatusOr<RegistryMeasurement> Run() {
    const absl::Time began = MonotonicNow();
    do {
      Build();
      TH_RETURN_IF_ERROR(Check());
    } while (SamplesOf(Operation::kRegister) < options_.samples);
    // First, so that all that follows finds as many versions as a model can have.
    while (SamplesOf(Operation::kPublishLast) * options_.ranks < options_.samples) {
      Publish();
      Unpublish();
      TH_RETURN_IF_ERROR(Check());
    }
    while (SamplesOf(Operation::kJoinAgain) < options_.samples) {
      Publish();
      MoveReaders();
      Unpublish();
      BreakStreams();
      ReplaceSome();
      TH_RETURN_IF_ERROR(Check());
    }
    while (SamplesOf(Operation::kLeaseTick) < options_.samples) {
      KeepLeases();
      TH_RETURN_IF_ERROR(Check());
    }
    while (SamplesOf(Operation::kResolve) < options_.samples) Resolve();
    TH_RETURN_IF_ERROR(Check());
    TH_RETURN_IF_ERROR(registry_->CheckInvariants());
    return Result(MonotonicNow() - began);
  }

 private:
  static size_t Index(Operation operation) { return static_cast<size_t>(operation); }
  uint64_t SamplesOf(Operation operation) const { return costs_[Index(operation)].samples(); }

  // ---- one call

  template <typename Call>
  void Time(Operation operation, const Call& call) {
    const absl::Duration before = ThreadTime();
    RegistryEffects effects = call();
    costs_[Index(operation)].Add(ThreadTime() - before);
    messages_[Index(operation)] += effects.messages.size();
    for (const OutgoingMessage& out : effects.messages) Hear(out.connection, out.message);
    now_ += kStep;
    if (operation != Operation::kLeaseTick) TickWhatIsDue();
  }

  void Say(Operation operation, const FleetRank& rank, const WorkerMessage& message) {
    Time(operation, [&] { return registry_->HandleMessage(rank.connection, message, now_); });
    SendLayouts();
  }

  // Each crosses once, however many register it: not part of what is measured.
  void SendLayouts() {
    for (const size_t i : std::exchange(layouts_wanted_, {})) {
      const LayoutUpload upload{layouts_[ranks_[i].rank]};
      for (const OutgoingMessage& out :
           registry_->HandleMessage(ranks_[i].connection, upload, now_).messages) {
        Hear(out.connection, out.message);
      }
    }
  }

  void TickWhatIsDue() {
    while (registry_->NextDeadline() <= now_) Tick();
  }
  void Tick() {
    Time(Operation::kLeaseTick, [&] { return registry_->HandleTick(now_); });
  }

  // ---- what the registry says

  void Hear(ConnectionId connection, const ServerMessage& message) {
    const std::optional<size_t>& who = rank_of_connection_[connection.value - 1];
    if (!who.has_value()) return;  // it has left
    FleetRank& rank = ranks_[*who];
    if (const auto* joined = std::get_if<Joined>(&message)) {
      rank.joined = *joined;
    } else if (const auto* resolved = std::get_if<OperationResolved>(&message)) {
      rank.version = resolved->version;
    } else if (const auto* assigned = std::get_if<AssignSources>(&message)) {
      rank.assignment = assigned->assignment;
      rank.source.reset();
      if (!assigned->sources.empty()) rank.source = assigned->sources.front();
    } else if (const auto* finished = std::get_if<OperationFinished>(&message)) {
      rank.version = finished->version;
      if (finished->outcome == UpdateOutcome::kNotAvailable) NoteFailure("no version was there");
      NoteFailure(finished->status);
    } else if (const auto* changed = std::get_if<GroupChanged>(&message)) {
      rank.joined.group_generation = changed->group_generation;
      rank.number = {};
    } else if (std::holds_alternative<LayoutWanted>(message)) {
      layouts_wanted_.push_back(*who);
    } else if (const auto* registered = std::get_if<BufferRegistered>(&message)) {
      NoteFailure(registered->status);
    } else if (const auto* refused = std::get_if<Refused>(&message)) {
      NoteFailure(refused->status);
    }
  }

  void NoteFailure(const absl::Status& status) {
    if (!status.ok()) NoteFailure(std::string(status.message()));
  }
  void NoteFailure(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }

  absl::Status Check() {
    if (options_.cancelled != nullptr && options_.cancelled()) {
      return absl::CancelledError("interrupted");
    }
    const RegistryCounters& counters = registry_->counters();
    const uint64_t refused = counters.messages_refused + counters.joins_refused;
    const uint64_t failed = counters.operations_failed + counters.leases_expired;
    if (refused + failed == 0 && failure_.empty()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the registry refused ", refused, " messages and failed ", failed,
                     " operations or leases of a fleet without a fault: ", failure_));
  }

  void ShowLine(absl::string_view what) {
    const absl::Time now = MonotonicNow();
    if (options_.progress == nullptr || now - reported_at_ < kReportEvery) return;
    reported_at_ = now;
    options_.progress(absl::StrCat(groups_ * options_.ranks, " workers: ", what));
  }

  // ---- the fleet

  void Build() {
    ShowLine("joining");
    rank_of_connection_.clear();
    ranks_.assign(size_t{groups_} * options_.ranks, FleetRank{});
    registry_ = std::make_unique<Registry>(
        RegistryStart{
            .epoch = Epoch(1),
            .identity = {.cluster = ClusterId(1), .epoch_ids = {EpochId(1)}, .of_this_process = 1},
            .now = now_},
        RegistryLimits{});
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].group = static_cast<uint32_t>(i / options_.ranks);
      ranks_[i].rank = static_cast<uint32_t>(i % options_.ranks);
    }
    for (const size_t i : Shuffled(ranks_.size())) Join(Operation::kJoin, i);
    for (const size_t i : Shuffled(ranks_.size())) {
      Say(Operation::kRegister, ranks_[i], RegisterBuffer{Announced(ranks_[i])});
    }
  }

  JoinRequest RequestOf(const FleetRank& rank) const {
    return {.hello = {.min_version = kMinProtocolVersion, .max_version = kProtocolVersion},
            .key = {.run = "bench", .model = "model"},
            .name = {absl::StrCat("group-", rank.group), Rank(rank.rank)},
            .ranks = options_.ranks,
            .location = {.site = "site",
                         .rack = absl::StrCat("rack-", rank.group / kGroupsPerRack),
                         .host = absl::StrCat("host-", rank.group)},
            .endpoints = {{.address = "10.0.0.1:4711"}}};
  }

  AnnouncedBuffer Announced(const FleetRank& rank) const {
    const ShardLayout& layout = layouts_[rank.rank];
    return {.buffer = kBuffer,
            .buffer_name = "weights",
            .form = "hf",
            .layout = layout.digest(),
            .bytes = layout.bytes(),
            .segment_count = layout.segment_count(),
            .generation = rank.generation};
  }

  void Open(size_t index) {
    rank_of_connection_.push_back(index);
    ranks_[index].connection = ConnectionId(rank_of_connection_.size());
  }

  void Join(Operation operation, size_t index) {
    Open(index);
    Say(operation, ranks_[index], RequestOf(ranks_[index]));
  }

  std::vector<size_t> Shuffled(size_t count, size_t first = 0) {
    std::vector<size_t> order(count - first);
    std::iota(order.begin(), order.end(), first);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }
  std::vector<size_t> Readers() { return Shuffled(ranks_.size(), options_.ranks); }
  FleetRank& TrainerRank(uint32_t rank) { return ranks_[kTrainer * options_.ranks + rank]; }
  // The index of one rank of the group, another one for the next group.
  size_t OneOf(uint32_t group, uint32_t offset) const {
    return size_t{group} * options_.ranks + (group + offset) % options_.ranks;
  }
  Digest RootOf(const FleetRank& rank) const { return layouts_[rank.rank].digest(); }

  // ---- operations

  void Start(Operation operation, FleetRank& rank, OperationKind kind, VersionLabel label = {}) {
    rank.number = rank.number.Next();
    Say(operation, rank,
        StartOperation{.key = {kBuffer, rank.number},
                       .kind = kind,
                       .timeout = kOperationTimeout,
                       .group_generation = rank.joined.group_generation,
                       .generation = rank.generation,
                       .label = std::move(label)});
  }

  void Publish() {
    ShowLine("publishing");
    const VersionLabel label = VersionLabel::Parse(absl::StrCat("step-", ++steps_)).value();
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      const bool last = r + 1 == options_.ranks;
      FleetRank& rank = TrainerRank(r);
      rank.generation = rank.generation.Next();
      Start(last ? Operation::kPublishLast : Operation::kPublish, rank, OperationKind::kPublish,
            label);
    }
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      FleetRank& rank = TrainerRank(r);
      Say(Operation::kSeal, rank, ShardSealed{kBuffer, rank.version.sequence, RootOf(rank)});
    }
  }

  void Unpublish() {
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      Start(Operation::kUnpublish, TrainerRank(r), OperationKind::kUnpublish);
    }
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      const bool last = r + 1 == options_.ranks;
      Say(last ? Operation::kDrainedLast : Operation::kDrained, TrainerRank(r),
          RankDone{{kBuffer, TrainerRank(r).number}});
    }
  }

  // All at once: everybody has asked before anybody is ready, and is filling before anybody is
  // done.
  void MoveReaders() {
    ShowLine("updating");
    for (const size_t i : Readers()) Start(Operation::kUpdate, ranks_[i], OperationKind::kUpdate);
    for (const size_t i : Readers()) {
      FleetRank& rank = ranks_[i];
      rank.generation = rank.generation.Next();
      Say(Operation::kReady, rank, ReadyToFill{{kBuffer, rank.number}, rank.generation});
    }
    SegmentSet half = SegmentSet::AllOf(kSegments / 2);
    for (const size_t i : Readers()) {
      FleetRank& rank = ranks_[i];
      Say(Operation::kProgress, rank,
          FillProgress{{kBuffer, rank.number}, rank.version.sequence, half});
    }
    for (uint32_t group = 1; group < groups_; ++group) ReportSource(ranks_[OneOf(group, 0)]);
    EndFills();
  }

  // Not those that read from the trainer: everybody is below them, so they would have to wait, and
  // whoever loses a source meanwhile with them.
  void ReportSource(FleetRank& rank) {
    if (!rank.source.has_value()) return NoteFailure("a reader has no source");
    if (rank.source->publisher) return;
    Say(Operation::kSourceFailed, rank,
        SourceFailed{{kBuffer, rank.number},
                     rank.assignment,
                     rank.source->buffer,
                     SourceFailure::kStalled,
                     "no byte for a while"});
  }

  void EndFills() {
    ShowLine("filling");
    std::vector<uint32_t> done(groups_, 0);
    for (const size_t i : Readers()) {
      FleetRank& rank = ranks_[i];
      const bool last = ++done[rank.group] == options_.ranks;
      Say(last ? Operation::kDoneLast : Operation::kDone, rank, RankDone{{kBuffer, rank.number}});
    }
  }

  // ---- membership

  void BreakStreams() {
    ShowLine("losing streams");
    for (uint32_t group = 1; group < groups_; ++group) {
      const size_t index = OneOf(group, 1);
      FleetRank& rank = ranks_[index];
      Time(Operation::kDisconnect,
           [&] { return registry_->HandleDisconnect(rank.connection, now_); });
      Open(index);
      Say(Operation::kRejoin, rank, Resumption(rank));
    }
  }

  JoinRequest Resumption(const FleetRank& rank) const {
    JoinRequest request = RequestOf(rank);
    request.resume = ResumeClaim{.worker = rank.joined.worker,
                                 .epoch = rank.joined.epoch,
                                 .group_generation = rank.joined.group_generation,
                                 .lineage = rank.joined.lineage,
                                 .cluster = rank.joined.cluster,
                                 .epoch_id = rank.joined.epoch_id,
                                 .secret = rank.joined.secret};
    request.buffers = {Announced(rank)};
    request.buffers[0].held = HeldVersion{
        .version = rank.version, .complete = true, .group_committed = true, .root = RootOf(rank)};
    request.buffers[0].last_finished = FinishedOperation{.number = rank.number,
                                                         .kind = OperationKind::kUpdate,
                                                         .outcome = UpdateOutcome::kMoved,
                                                         .version = rank.version};
    return request;
  }

  void ReplaceSome() {
    ShowLine("replacing workers");
    for (uint32_t group = 1; group < groups_; ++group) {
      const size_t index = OneOf(group, 2);
      FleetRank& rank = ranks_[index];
      rank_of_connection_[rank.connection.value - 1].reset();
      Say(Operation::kLeave, rank, Leave{});
      rank = {.group = rank.group, .rank = rank.rank};
      Join(Operation::kJoinAgain, index);
      Say(Operation::kRegister, rank, RegisterBuffer{Announced(rank)});
    }
  }

  // Everybody speaks, and half a lease passes: those that come to be looked at meanwhile are.
  void KeepLeases() {
    ShowLine("keeping leases");
    const absl::Time until = now_ + RegistryLimits{}.lease / 2;
    for (const size_t i : Shuffled(ranks_.size())) {
      Say(Operation::kHeartbeat, ranks_[i], Heartbeat{});
    }
    while (registry_->NextDeadline() < until) {
      now_ = std::max(now_, registry_->NextDeadline());
      Tick();
    }
    now_ = std::max(now_, until);
  }

  void Resolve() {
    const ModelKey key{.run = "bench", .model = "model"};
    const absl::Duration before = ThreadTime();
    const absl::StatusOr<VersionInfo> version = registry_->Resolve(key, LatestVersion{});
    costs_[Index(Operation::kResolve)].Add(ThreadTime() - before);
    NoteFailure(version.status());
  }

  RegistryMeasurement Result(absl::Duration took) const {
    RegistryMeasurement result{.workers = ranks_.size(),
                               .groups = groups_,
                               .ranks = options_.ranks,
                               .seconds = absl::ToDoubleSeconds(took)};
    result.operations.reserve(kNames.size());
    for (size_t i = 0; i < kNames.size(); ++i) {
      const LatencySummary latency = costs_[i].Summarize();
      const double calls = std::max<double>(static_cast<double>(latency.samples), 1);
      result.operations.push_back({.operation = kNames[i].key,
                                   .about = kNames[i].about,
                                   .latency = latency,
                                   .messages = static_cast<double>(messages_[i]) / calls});
    }
    return result;
  }

  const RegistryBenchOptions& options_;
  const uint32_t groups_;
  std::vector<ShardLayout> layouts_;  // by rank
  std::mt19937_64 random_{1};         // the same order in every run
  std::unique_ptr<Registry> registry_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::vector<FleetRank> ranks_;                           // group by group
  std::vector<std::optional<size_t>> rank_of_connection_;  // none: it has left
  std::vector<size_t> layouts_wanted_;                     // from these ranks
  std::array<Latencies, static_cast<size_t>(Operation::kCount)> costs_;
  std::array<uint64_t, static_cast<size_t>(Operation::kCount)> messages_ = {};
  uint64_t steps_ = 0;
  std::string failure_;  // the first
  absl::Time reported_at_ = MonotonicNow();
};

double InMicroseconds(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

}  // namespace

absl::StatusOr<RegistryMeasurement> MeasureRegistry(const RegistryBenchOptions& options) {
  return RegistryBench(options).Run();
}

std::string TextOf(const RegistryMeasurement& measured) {
  TextTable table({{"OPERATION"},
                   {"MEDIAN us", Align::kRight},
                   {"99 %", Align::kRight},
                   {"99.9 %", Align::kRight},
                   {"MOST", Align::kRight},
                   {"CALLS", Align::kRight},
                   {"MESSAGES", Align::kRight},
                   {"WHAT HAPPENS"}});
  for (const OperationCost& cost : measured.operations) {
    table.AddRow({cost.operation, absl::StrFormat("%.1f", InMicroseconds(cost.latency.median)),
                  absl::StrFormat("%.1f", InMicroseconds(cost.latency.p99)),
                  absl::StrFormat("%.1f", InMicroseconds(cost.latency.p999)),
                  absl::StrFormat("%.1f", InMicroseconds(cost.latency.max)),
                  absl::StrCat(cost.latency.samples), absl::StrFormat("%.1f", cost.messages),
                  cost.about});
  }
  return absl::StrFormat("%d workers in %d groups of %d; microseconds of processor time a call\n%s",
                         measured.workers, measured.groups, measured.ranks, table.ToString());
}

json ToJson(const RegistryMeasurement& measured) {
  json operations = json::object();
  for (const OperationCost& cost : measured.operations) {
    operations[cost.operation] = {{"samples", cost.latency.samples},
                                  {"median_us", InMicroseconds(cost.latency.median)},
                                  {"p99_us", InMicroseconds(cost.latency.p99)},
                                  {"p999_us", InMicroseconds(cost.latency.p999)},
                                  {"max_us", InMicroseconds(cost.latency.max)},
                                  {"messages", cost.messages}};
  }
  return {{"workers", measured.workers},
          {"groups", measured.groups},
          {"ranks", measured.ranks},
          {"operations", std::move(operations)},
          {"seconds", measured.seconds}};
}

}  // namespace th
