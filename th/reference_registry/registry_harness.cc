#include "th/reference_registry/registry_harness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "testing/status_matchers.h"

namespace th {

constexpr size_t kLogLines = 60;

ShardLayout LayoutNamed(const std::string& tensor, uint64_t segments, ChecksumAlgorithm checksum) {
  ShardLayout::Spec spec{.segment_bytes = kMinSegmentBytes, .checksum = checksum};
  spec.tensors.push_back({.name = tensor,
                          .dtype = DType::kU8,
                          .shape = {static_cast<int64_t>(segments * kMinSegmentBytes)}});
  absl::StatusOr<ShardLayout> layout = ShardLayout::Build(std::move(spec));
  EXPECT_OK(layout);
  return layout.ok() ? *std::move(layout) : ShardLayout();
}

Digest RootNamed(const std::string& content) { return Sha256(content); }

ModelKey TestModel() { return {.run = "r1", .model = "qwen3"}; }

RegistryHarness::RegistryHarness(RegistryLimits limits, DurableState durable)
    : limits_(limits), durable_(std::move(durable)) {
  RestartEmpty();
}

void RegistryHarness::RestartEmpty(Epoch epoch) {
  SavedState fresh{.epoch = epoch, .durable = std::move(durable_)};
  if (registry_ != nullptr) fresh.durable = {};
  fresh.identity.cluster = ClusterId(++drawn_);
  fresh.identity.key.bytes.fill(static_cast<uint8_t>(drawn_));
  durable_ = std::move(fresh.durable);
  identity_ = fresh.identity;
  mailboxes_.clear();
  Start(/*recovering=*/false, fresh.epoch);
}

void RegistryHarness::RestartWith(const SavedState& saved) {
  identity_ = saved.identity;
  durable_ = saved.durable;
  identity_.of_this_process = 0;
  mailboxes_.clear();
  Start(/*recovering=*/true, saved.epoch);
}

void RegistryHarness::Start(bool recovering, Epoch above) {
  epoch_ = above.Next();
  identity_.epoch_ids.emplace_back(++drawn_);
  ++identity_.of_this_process;
  registry_ = std::make_unique<Registry>(RegistryStart{.epoch = epoch_,
                                                       .identity = identity_,
                                                       .durable = durable_,
                                                       .recovering = recovering,
                                                       .now = now_,
                                                       .key_seed = {1, 2, 3, epoch_.value}},
                                         limits_);
}

void RegistryHarness::Restart() {
  log_.push_back("server restarts");
  RestartWith(Save());
}

void RegistryHarness::RestartWithoutRecovery() {
  identity_.of_this_process = 0;
  mailboxes_.clear();
  Start(/*recovering=*/false, epoch_);
}

ConnectionId RegistryHarness::Open() {
  last_connection_ = last_connection_.Next();
  return last_connection_;
}

void RegistryHarness::Deliver(ConnectionId connection, const WorkerMessage& message) {
  Route(registry_->HandleMessage(connection, message, now_));
}

void RegistryHarness::Disconnect(ConnectionId connection) {
  Route(registry_->HandleDisconnect(connection, now_));
}

void RegistryHarness::Advance(absl::Duration duration) {
  const absl::Time end = now_ + duration;
  while (registry_->NextDeadline() <= end) {
    now_ = std::max(now_, registry_->NextDeadline());
    Route(registry_->HandleTick(now_));
  }
  now_ = end;
  Route(registry_->HandleTick(now_));
}

void RegistryHarness::Pause(absl::Duration duration) {
  now_ += duration;
  registry_->HandlePause(duration, now_);
  Route(registry_->HandleTick(now_));
}

CommandFinished RegistryHarness::Command(const RunCommand& command, const ModelKey& key) {
  Registry::CommandResult result = registry_->HandleCommand(key, command, "controller", now_);
  Route(std::move(result.effects));
  return result.finished;
}

void RegistryHarness::Route(RegistryEffects effects) {
  if (effects.durable.has_value()) durable_ = *std::move(effects.durable);
  for (RegistryEvent& event : effects.events) {
    log_.push_back(event.LogLine());
    if (log_.size() > kLogLines) log_.pop_front();
  }
  for (OutgoingMessage& out : effects.messages) {
    CheckSaid(out.message);
    EXPECT_FALSE(closed_.contains(out.connection)) << "a message to a closed stream";
    mailboxes_[out.connection].push_back(std::move(out.message));
  }
  for (ConnectionId connection : effects.close) closed_[connection] = true;
  if (effects.outdone_by.has_value()) {
    log_.push_back("server begins again");
    Start(/*recovering=*/true, std::max(epoch_, *effects.outdone_by));
  }
  if (check_state_) {
    EXPECT_OK(registry_->CheckInvariants());
  }
}

std::string RegistryHarness::Log() const { return absl::StrJoin(log_, "\n"); }

void RegistryHarness::CheckSaid(const ServerMessage& message) {
  VersionSequence named;
  if (const auto* finished = std::get_if<OperationFinished>(&message)) {
    if (finished->status.ok()) named = finished->version.sequence;
  } else if (const auto* resolved = std::get_if<OperationResolved>(&message)) {
    named = resolved->version.sequence;
  }
  VersionSequence highest;
  for (const auto& [key, model] : durable_.models) highest = std::max(highest, model.high_water);
  const auto* finished = std::get_if<OperationFinished>(&message);
  if (finished != nullptr && finished->kind == OperationKind::kUnpublish) return;
  EXPECT_LE(named, highest) << "a version was named before it was durable";
}

TestRank::TestRank(RegistryHarness& hub, std::string group, uint32_t rank, uint32_t ranks,
                   ShardLayout layout)
    : name{std::move(group), Rank(rank)}, ranks(ranks), layout(std::move(layout)), hub_(&hub) {
  location.host = absl::StrCat("host-", name.group);
}

JoinRequest TestRank::Request() const {
  JoinRequest request{.hello = {.min_version = 1, .max_version = 1},
                      .key = TestModel(),
                      .name = name,
                      .ranks = ranks,
                      .location = location};
  request.endpoints.push_back({.address = absl::StrCat(name.ToString(), ":4711")});
  return request;
}

bool TestRank::Join(JoinRequest request) {
  connection = hub_->Open();
  hub_->Deliver(connection, request);
  if (const auto refusals = hub_->TakeAll<Refused>(connection); !refusals.empty()) {
    refused = refusals.back();
    return false;
  }
  const Joined joined = Heard<Joined>();
  worker = joined.worker;
  generation = joined.group_generation;
  lineage = joined.lineage;
  capability_key = joined.key;
  joined_epoch = joined.epoch;
  cluster = joined.cluster;
  epoch_id = joined.epoch_id;
  secret = joined.secret;
  return true;
}

ResumeClaim TestRank::Claim() const {
  return {.worker = worker,
          .epoch = joined_epoch,
          .group_generation = generation,
          .lineage = lineage,
          .cluster = cluster,
          .epoch_id = epoch_id,
          .secret = secret};
}

bool TestRank::Resume(std::vector<AnnouncedBuffer> buffers, GroupGeneration claimed) {
  JoinRequest request = Request();
  request.resume = Claim();
  request.resume->group_generation = claimed;
  request.buffers = std::move(buffers);
  const bool resumed = Join(std::move(request));
  for (const LayoutWanted& wanted : hub_->TakeAll<LayoutWanted>(connection)) {
    EXPECT_EQ(wanted.layout, layout.digest());
    Say(LayoutUpload{layout});
  }
  return resumed;
}

absl::Status TestRank::Register() {
  Say(RegisterBuffer{Announced()});
  if (!HearsNone<LayoutWanted>()) Say(LayoutUpload{layout});
  return Heard<BufferRegistered>().status;
}

void TestRank::JoinAndRegister() {
  EXPECT_TRUE(Join()) << refused.status;
  EXPECT_OK(Register());
}

StartOperation TestRank::PublishRequest(const std::string& label) {
  absl::StatusOr<VersionLabel> parsed = VersionLabel::Parse(label);
  EXPECT_OK(parsed);
  return {.key = {buffer, number.Next()},
          .kind = OperationKind::kPublish,
          .timeout = absl::Seconds(60),
          .label = parsed.ok() ? *parsed : VersionLabel()};
}

StartOperation TestRank::UpdateRequest(const VersionSelector& selector) {
  return {.key = {buffer, number.Next()},
          .kind = OperationKind::kUpdate,
          .timeout = absl::Seconds(60),
          .selector = selector};
}

StartOperation TestRank::UnpublishRequest() {
  return {.key = {buffer, number.Next()},
          .kind = OperationKind::kUnpublish,
          .timeout = absl::Seconds(60)};
}

void TestRank::Start(StartOperation request) {
  number = request.key.number;
  Say(request);
}

void TestRank::Seal(VersionSequence version, const std::string& content) {
  Say(ShardSealed{buffer, version, RootNamed(content)});
}

void TestRank::Ready() {
  buffer_generation = buffer_generation.Next();
  Say(ReadyToFill{key(), buffer_generation});
}

void TestRank::Done() { Say(RankDone{key()}); }

void TestRank::Fail(absl::Status status, bool undefined) {
  Say(RankFailed{key(), std::move(status), undefined});
}

void TestRank::Report(const AssignedSource& source, SourceFailure failure,
                      const std::string& detail) {
  Say(SourceFailed{key(), assignment, source.buffer, failure, detail});
}

AssignedSource TestRank::Fill() {
  Ready();
  const AssignSources assigned = Heard<AssignSources>();
  assignment = assigned.assignment;
  EXPECT_EQ(assigned.sources.size(), 1u) << name.ToString() << ": " << assigned.why_empty;
  return assigned.sources.empty() ? AssignedSource{} : assigned.sources.front();
}

void TestRank::FillWhole() {
  Ready();
  Done();
}

AnnouncedBuffer TestRank::Announced() const {
  return {.buffer = buffer,
          .buffer_name = buffer_name,
          .form = form,
          .layout = layout.digest(),
          .bytes = layout.bytes(),
          .segment_count = layout.segment_count(),
          .generation = buffer_generation,
          .role = role};
}

AnnouncedBuffer TestRank::Holding(const VersionInfo& version, bool publisher,
                                  const std::string& root) const {
  AnnouncedBuffer announced = Announced();
  announced.held = HeldVersion{.version = version,
                               .complete = true,
                               .publisher = publisher,
                               .group_committed = true,
                               .root = RootNamed(root)};
  return announced;
}

AnnouncedBuffer TestRank::Filling(const VersionInfo& version,
                                  std::vector<BufferAddress> sources) const {
  AnnouncedBuffer announced = Announced();
  announced.held = HeldVersion{.version = version, .sources = std::move(sources)};
  announced.held->segments.Add(SegmentIndex(0));
  return announced;
}

std::vector<TestRank> MakeGroup(RegistryHarness& hub, const std::string& group, uint32_t ranks) {
  std::vector<TestRank> made;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    made.emplace_back(hub, group, rank, ranks, LayoutNamed(absl::StrCat("w", rank)));
  }
  return made;
}

void JoinAndRegister(std::vector<TestRank>& group) {
  for (TestRank& rank : group) rank.JoinAndRegister();
}

std::vector<TestRank> JoinedGroup(RegistryHarness& hub, const std::string& group, uint32_t ranks) {
  std::vector<TestRank> joined = MakeGroup(hub, group, ranks);
  JoinAndRegister(joined);
  return joined;
}

VersionInfo PublishWhole(std::vector<TestRank>& group, const std::string& label) {
  for (TestRank& rank : group) rank.Publish(label);
  VersionInfo version;
  for (TestRank& rank : group) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    version = finished.version;
    rank.Seal(version.sequence, absl::StrCat(label, rank.layout.tensors()[0].name));
  }
  return version;
}

void UpdateWhole(std::vector<TestRank>& group) {
  for (TestRank& rank : group) rank.Update();
  for (TestRank& rank : group) rank.FillWhole();
  for (TestRank& rank : group) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_EQ(finished.outcome, UpdateOutcome::kMoved);
  }
}

void PassAlive(RegistryHarness& hub, const std::vector<TestRank*>& ranks, absl::Duration duration) {
  constexpr absl::Duration kBetween = absl::Seconds(2);  // well within a lease
  for (absl::Duration passed; passed < duration; passed += kBetween) {
    for (TestRank* rank : ranks) rank->Say(Heartbeat{});
    hub.Advance(kBetween);
  }
}

TestRank Trainer(RegistryHarness& hub, const std::string& label) {
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Publish(label);
  const OperationFinished finished = trainer.Finished();
  EXPECT_OK(finished.status);
  trainer.Seal(finished.version.sequence, label);
  return trainer;
}

TestRank Rollout(RegistryHarness& hub, const std::string& group) {
  TestRank rollout(hub, group, 0, 1);
  rollout.JoinAndRegister();
  return rollout;
}

}  // namespace th
