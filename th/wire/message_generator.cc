#include "th/wire/message_generator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {

WorkerMessage MessageGenerator::MakeWorkerMessage(size_t alternative) {
  switch (alternative) {
    case 0:
      return Join();
    case 1:
      return RegisterBuffer{Announced()};
    case 2:
      return LayoutUpload{Layout()};
    case 3:
      return Start();
    case 4:
      return ReadyToFill{Key(), BufferGeneration(Number())};
    case 5:
      return ShardSealed{BufferId(SmallNumber()), VersionSequence(Number()), SomeDigest()};
    case 6:
      return FillProgress{Key(), VersionSequence(Number()), Segments(), Throughputs(),
                          SomeTransports()};
    case 7:
      return RankDone{Key(), SmallNumber(), SomeCost()};
    case 8:
      return RankFailed{Key(), Failure(), Coin()};
    case 9:
      return SourceFailed{Key(), AssignmentId(Number()), Buffer(),
                          Choose(SourceFailure::kConnect, SourceFailure::kGenerationChanged),
                          Text()};
    case 10:
      return BufferReset{BufferId(SmallNumber())};
    case 11:
      return UnregisterBuffer{BufferId(SmallNumber())};
    case 12:
      return MakeRunCommand();
    case 13:
      return Heartbeat{Number() % 2 == 0};
    case 14:
      return Leave{};
    case 15:
      return SourceSuspected{Key(), AssignmentId(Number()), Buffer(), Text()};
    default:
      return Preempt{SomeDuration()};
  }
}

ServerMessage MessageGenerator::MakeServerMessage(size_t alternative) {
  switch (alternative) {
    case 0: {
      Joined out{Hello(),
                 Epoch(SmallNumber()),
                 WorkerId(Number()),
                 GroupGeneration(Number()),
                 Lineage(Number()),
                 {},
                 SomeDuration(),
                 SomeDuration(),
                 ClusterId(Number()),
                 EpochId(Number())};
      for (uint8_t& byte : out.key.bytes) byte = static_cast<uint8_t>(Number());
      for (uint8_t& byte : out.secret.bytes) byte = static_cast<uint8_t>(Number());
      return out;
    }
    case 1:
      return Refused{Failure(), Coin() ? SomeDuration() : absl::InfiniteDuration(),
                     Epoch(SmallNumber()), Coin() ? "10.0.0.7:7077" : ""};
    case 2:
      return LayoutWanted{SomeDigest()};
    case 3:
      return BufferRegistered{BufferId(SmallNumber()), SomeStatus()};
    case 4:
      return OperationResolved{Key(), Version(),
                               Coin() ? std::optional<Digest>(SomeDigest()) : std::nullopt,
                               SomeEvent(), Coin() ? std::optional(SomeReceipt()) : std::nullopt};
    case 5: {
      AssignSources out{Key(), AssignmentId(Number()), VersionSequence(Number()), {}, Text()};
      for (uint64_t i = 1 + Below(3); i > 0; --i) out.sources.push_back(Source());
      out.event = SomeEvent();
      return out;
    }
    case 6:
      return RootKnown{VersionSequence(Number()),
                       {SomeDigest(), SomeDigest()},
                       Coin() ? std::optional(SomeReceipt()) : std::nullopt};
    case 7:
      return OperationFinished{Key(),
                               Choose(OperationKind::kPublish, OperationKind::kUpdate),
                               SomeStatus(),
                               Choose(UpdateOutcome::kNone, UpdateOutcome::kNotAvailable),
                               Choose(NotAvailableReason::kNone, NotAvailableReason::kBehindFloor),
                               Version(),
                               Lineage(Number()),
                               Coin(),
                               Coin(),
                               SomeEvent()};
    case 8:
      return PublicationRefused{BufferId(SmallNumber()), VersionSequence(Number()), SomeStatus()};
    case 9:
      return GroupChanged{GroupGeneration(Number()), SomeRank()};
    case 10:
      return CommandFinished{Name(), SomeStatus(), Version(), Lineage(Number())};
    case 11:
      return OffloadReleased{BufferId(SmallNumber())};
    default:
      return Alive{};
  }
}

Catalog MessageGenerator::MakeCatalog() {
  Catalog out{.epoch = Epoch(SmallNumber()), .recovering = Coin()};
  for (uint64_t i = Below(3); i > 0; --i) {
    CatalogModel model{
        {Name(), Name()}, Lineage(Number()), VersionSequence(Number()), SmallNumber(), {}, {}, {}};
    if (Coin()) model.keep_latest_of_form[Name()] = SmallNumber();
    for (uint64_t j = Below(3); j > 0; --j) {
      model.versions.push_back({Version(),
                                Coin(),
                                Coin(),
                                Coin(),
                                Number(),
                                {{SomeDigest(), SomeDigest()}},
                                {Pin(), Pin()},
                                {Name(), Name()},
                                {Replica(), Replica()}});
    }
    if (Coin()) model.idle.push_back(Replica());
    if (Coin()) model.totals = SomeTotals();
    out.models.push_back(std::move(model));
  }
  return out;
}

RecentEvents MessageGenerator::MakeEvents() {
  RecentEvents out{.epoch = Epoch(SmallNumber()), .last = Number(), .lost = Coin()};
  for (uint64_t i = Below(4); i > 0; --i) {
    out.events.push_back({.number = Number(),
                          .id = SomeEvent(),
                          .kind = Choose(EventKind::kNone, EventKind::kServerStops),
                          .age = SomeDuration(),
                          .at = absl::FromUnixMicros(static_cast<int64_t>(SmallNumber())),
                          .key = Coin() ? ModelKey() : ModelKey{Name(), Name()},
                          .who = Text(),
                          .what = Text()});
  }
  return out;
}

RunCommand MessageGenerator::MakeRunCommand() {
  switch (Below(5)) {
    case 0:
      return {Name(), RollBack{MakeSelector()}};
    case 1:
      return {Name(), SetRetention{SmallNumber(), MaybeName()}};
    case 2:
      return {Name(), PinVersion{MakeSelector(), Text(),
                                 Coin() ? SomeDuration() : absl::InfiniteDuration(), MaybeName()}};
    case 3:
      return {Name(), ReleasePin{MakeSelector(), Text(), MaybeName()}};
    default:
      return {Name(), Forget{}};
  }
}

VersionSelector MessageGenerator::MakeSelector() {
  switch (Below(3)) {
    case 0:
      return LatestVersion{.back = Coin() ? SmallNumber() : 0};
    case 1:
      return Label();
    default:
      return VersionSequence(1 + Below(1'000'000));
  }
}

// Small ones, large ones and the largest.
uint64_t MessageGenerator::Number() {
  const uint64_t choice = Below(8);
  if (choice == 0) return ~uint64_t{0};
  return choice < 4 ? Below(100) : random_();
}

std::string MessageGenerator::Name() { return absl::StrCat("n-", Below(1'000'000), "-\xc3\xa9"); }

std::string MessageGenerator::MaybeName() { return Coin() ? "" : Name(); }

std::string MessageGenerator::Text() { return Coin() ? "" : absl::StrCat("some text ", Number()); }

std::string MessageGenerator::RawBytes() {
  std::string out(Below(20), '\0');
  for (char& byte : out) byte = static_cast<char>(random_());
  return out;
}

absl::Duration MessageGenerator::SomeDuration() {
  return absl::Nanoseconds(static_cast<int64_t>(Below(uint64_t{1} << 50)));
}

std::vector<SourceThroughput> MessageGenerator::Throughputs() {
  std::vector<SourceThroughput> throughputs(Below(kMaxThroughputsReported + 1));
  for (SourceThroughput& throughput : throughputs) {
    throughput = {Buffer(), Number(), absl::Microseconds(Below(uint64_t{1} << 40))};
  }
  return throughputs;
}

absl::Status MessageGenerator::SomeStatus() { return Coin() ? absl::OkStatus() : Failure(); }

absl::Status MessageGenerator::Failure() {
  return absl::Status(static_cast<absl::StatusCode>(1 + Below(16)), Text());
}

Digest MessageGenerator::SomeDigest() {
  Digest out;
  for (uint8_t& byte : out.bytes) byte = static_cast<uint8_t>(random_());
  return out;
}

VersionLabel MessageGenerator::Label() {
  return VersionLabel::FromStep(static_cast<int64_t>(Below(1'000'000)));
}

VersionInfo MessageGenerator::Version() {
  return {VersionSequence(Number()), Coin() ? Label() : VersionLabel(), Lineage(Number()),
          SomeAttributes()};
}

Attributes MessageGenerator::SomeAttributes() {
  Attributes out;
  for (uint64_t i = Below(4); i > 0; --i) out[RawBytes()] = RawBytes();
  return out;
}

SegmentSet MessageGenerator::Segments() {
  SegmentSet out;
  for (uint64_t i = Below(5); i > 0; --i) {
    const uint64_t begin = Below(1000);
    out.Add({SegmentIndex(begin), SegmentIndex(begin + Below(100))});
  }
  return out;
}

Endpoint MessageGenerator::SomeEndpoint() {
  return {absl::StrCat("10.0.0.", Below(256), ":", Below(65536)), Name(), Text()};
}

Location MessageGenerator::SomeLocation() {
  Location out{Text(), Text(), Text(), static_cast<int32_t>(Below(9)) - 1, {}, Text(), Text()};
  for (uint64_t i = Below(3); i > 0; --i) out.nics.push_back(Name());
  return out;
}

RankName MessageGenerator::SomeRank() { return {Name(), Rank(SmallNumber())}; }

BufferAddress MessageGenerator::Buffer() { return {WorkerId(Number()), BufferId(SmallNumber())}; }

OperationKey MessageGenerator::Key() {
  return {BufferId(SmallNumber()), OperationNumber(Number())};
}

ProtocolHello MessageGenerator::Hello() { return {SmallNumber(), SmallNumber(), Number(), Name()}; }

HeldVersion MessageGenerator::Held() {
  HeldVersion out{Version(), Coin(), Coin(), Coin(), {}, Segments(), {}};
  if (Coin()) out.root = SomeDigest();
  for (uint64_t i = Below(3); i > 0; --i) out.sources.push_back(Buffer());
  if (Coin()) out.receipt = SomeReceipt();
  return out;
}

RootReceipt MessageGenerator::SomeReceipt() {
  RootReceipt out{.root = SomeDigest()};
  for (uint8_t& byte : out.code) byte = static_cast<uint8_t>(Number());
  return out;
}

AnnouncedBuffer MessageGenerator::Announced() {
  AnnouncedBuffer out{.buffer = BufferId(SmallNumber()),
                      .buffer_name = Name(),
                      .form = Name(),
                      .layout = SomeDigest(),
                      .bytes = Number(),
                      .segment_count = 2000 + Below(100),
                      .generation = BufferGeneration(Number())};
  out.role = Choose(BufferRole::kPrimary, BufferRole::kStreaming);
  if (out.role == BufferRole::kStaged) out.staged_for = Name();
  if (Coin()) out.counts_after = GroupGeneration(Number());
  if (Coin()) out.held = Held();
  if (Coin()) {
    out.last_finished =
        FinishedOperation{OperationNumber(Number()),
                          Choose(OperationKind::kPublish, OperationKind::kUpdate),
                          SomeStatus(),
                          Choose(UpdateOutcome::kNone, UpdateOutcome::kNotAvailable),
                          Choose(NotAvailableReason::kNone, NotAvailableReason::kBehindFloor),
                          Version(),
                          Coin(),
                          Coin()};
  }
  return out;
}

AssignedSource MessageGenerator::Source() {
  AssignedSource out{.buffer = Buffer(),
                     .name = SomeRank(),
                     .endpoints = {SomeEndpoint(), SomeEndpoint()},
                     .generation = BufferGeneration(Number()),
                     .distance = Choose(Distance::kSameDevice, Distance::kOtherSite),
                     .partial = Coin(),
                     .publisher = Coin()};
  out.capability.claims = {WorkerId(Number()), Buffer(), VersionSequence(Number()),
                           Epoch(SmallNumber()), AssignmentId(Number())};
  for (uint8_t& byte : out.capability.mac) byte = static_cast<uint8_t>(random_());
  return out;
}

ShardLayout MessageGenerator::Layout() {
  ShardLayout::Spec spec;
  for (uint64_t i = 1 + Below(4); i > 0; --i) {
    spec.tensors.push_back({.name = absl::StrCat("t", i),
                            .dtype = DType::kBF16,
                            .shape = {static_cast<int64_t>(Below(50)), 3}});
  }
  return ShardLayout::Build(std::move(spec)).value_or(ShardLayout());
}

JoinRequest MessageGenerator::Join() {
  JoinRequest out{.hello = Hello(),
                  .key = {Name(), Name()},
                  .name = SomeRank(),
                  .ranks = SmallNumber(),
                  .location = SomeLocation(),
                  .endpoints = {SomeEndpoint()},
                  .spot = Coin(),
                  .offload_limit_bytes = Number(),
                  .credentials = RawBytes()};
  if (Coin()) {
    out.resume = ResumeClaim{WorkerId(Number()), Epoch(SmallNumber()), GroupGeneration(Number()),
                             Lineage(Number()),  ClusterId(Number()),  EpochId(Number())};
    for (uint8_t& byte : out.resume->secret.bytes) byte = static_cast<uint8_t>(Number());
  }
  for (uint64_t i = Below(3); i > 0; --i) out.buffers.push_back(Announced());
  if (Coin()) out.leaves_in = SomeDuration();
  return out;
}

StartOperation MessageGenerator::Start() {
  StartOperation out{.key = Key(),
                     .kind = Choose(OperationKind::kPublish, OperationKind::kUpdate),
                     .timeout = SomeDuration(),
                     .group_generation = GroupGeneration(Number()),
                     .generation = BufferGeneration(Number()),
                     .label = Label(),
                     .attributes = SomeAttributes(),
                     .snapshot_bytes = Number(),
                     .keep_retained = Coin(),
                     .selector = MakeSelector(),
                     .floor = VersionSequence(Number()),
                     .when_seeding = Choose(WhenSeeding::kWait, WhenSeeding::kCopy)};
  if (Coin()) out.derived_from = VersionSequence(Number());
  if (Coin()) out.resolved = Version();
  return out;
}

CatalogRank MessageGenerator::OneRank() {
  CatalogRank out{.name = SomeRank(),
                  .worker = WorkerId(Number()),
                  .buffer_name = Name(),
                  .location = SomeLocation(),
                  .endpoints = {SomeEndpoint()},
                  .layout = SomeDigest(),
                  .bytes = Number(),
                  .bytes_held = Number(),
                  .connected = Coin(),
                  .since_heard = SomeDuration(),
                  .readers = SmallNumber(),
                  .sources = {SomeRank()},
                  .snapshot_bytes = Number(),
                  .leaves_in = Coin() ? SomeDuration() : absl::InfiniteDuration(),
                  .transports = {{Name()}, {SomePassedOver()}}};
  for (absl::Duration& stall : out.stall) stall = SomeDuration();
  return out;
}

CatalogPin MessageGenerator::Pin() {
  return {.owner = Name(),
          .form = Coin() ? Name() : "",
          .expires_in = Coin() ? SomeDuration() : absl::InfiniteDuration()};
}

CatalogReplica MessageGenerator::Replica() {
  CatalogReplica out{Name(),
                     Name(),
                     Name(),
                     Choose(BufferRole::kPrimary, BufferRole::kStreaming),
                     Text(),
                     Coin(),
                     {OneRank(), OneRank()}};
  out.event = SomeEvent();
  if (out.event.empty()) return out;
  out.operation = Choose(OperationKind::kPublish, OperationKind::kUpdate);
  out.operation_since = SomeDuration();
  return out;
}

EventId MessageGenerator::SomeEvent() { return EventId(Coin() ? 0 : Number()); }

std::optional<TransportsUsed> MessageGenerator::SomeTransports() {
  if (Coin()) return std::nullopt;
  TransportsUsed used;
  for (uint64_t i = Below(kMaxTransportsReported + 1); i > 0; --i) used.names.push_back(Name());
  for (uint64_t i = Below(3); i > 0; --i) used.passed_over.push_back(SomePassedOver());
  return used;
}

PassedOver MessageGenerator::SomePassedOver() { return {Name(), Name(), Number()}; }

FillCost MessageGenerator::SomeFillCost() {
  FillCost out{.unchanged_bytes = Number(),
               .rerouted_bytes = Number(),
               .reread_bytes = Number(),
               .reroutes = SmallNumber()};
  for (uint64_t i = Below(4); i > 0; --i) {
    out.received.push_back(
        {Name(), Choose(Distance::kSameDevice, Distance::kOtherSite), Coin(), Number()});
  }
  for (uint64_t i = Below(3); i > 0; --i) out.passed_over.push_back(SomePassedOver());
  return out;
}

RankCost MessageGenerator::SomeCost() {
  if (Coin()) return {};
  return {SomeDuration(), SomeDuration(), SomeDuration(), SomeDuration(), SomeFillCost()};
}

ModelTotals MessageGenerator::SomeTotals() {
  ModelTotals out{.fill = SomeFillCost(),
                  .copies_published = static_cast<double>(Below(1000)) / 7,
                  .copies_relayed = static_cast<double>(Below(1000)) / 7,
                  .publishes = Number(),
                  .moves = Number(),
                  .not_available = Number(),
                  .drains = Number(),
                  .readers_cut = Number(),
                  .sources_failed = Number(),
                  .sources_suspected = Number(),
                  .offloads = Number(),
                  .offloads_failed = Number(),
                  .leases_expired = Number(),
                  .claims_refused = Number()};
  for (absl::Duration& stall : out.stall) stall = SomeDuration();
  for (uint64_t i = Below(3); i > 0; --i) {
    out.failures.push_back({.kind = static_cast<uint8_t>(1 + Below(3)),
                            .code = static_cast<int>(1 + Below(16)),
                            .count = Number()});
  }
  return out;
}

}  // namespace th
