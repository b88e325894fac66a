#include "th/worker_session/world_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_world.h"

namespace th {
namespace {

constexpr absl::Duration kSealTime = absl::Milliseconds(20);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);

std::shared_ptr<const ShardLayout> LayoutOf(int layout) {
  TensorSpec tensor;
  tensor.name = absl::StrCat("shard", layout);
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(kWorldSegments * kMinSegmentBytes)};
  ShardLayout::Spec spec;
  spec.tensors = {tensor};
  spec.segment_bytes = kMinSegmentBytes;
  return std::make_shared<ShardLayout>(ShardLayout::Build(std::move(spec)).value());
}

}  // namespace

WorldNode::WorldNode(World* world, SessionOptions options, int layout)
    : session(options, {}), world_(world), name_(options.name), layout_(layout) {}

void WorldNode::Start() {
  session.Start(world_->now());
  const auto buffer = session.RegisterBuffer("weights", "hf", LayoutOf(layout_), world_->now());
  ASSERT_OK(buffer);
  buffer_ = *buffer;
  Drain();
}

// ---- the caller

CallId WorldNode::Publish(const std::string& label) {
  const CallId call(++calls_);
  EXPECT_EQ(state(), BufferState::kWritable) << "would write into a buffer that is frozen";
  for (uint64_t i = 0; i < kWorldSegments; ++i) segments_[i] = World::Truth(label, layout_, i);
  const absl::Status status =
      session.Publish(call, buffer_, {.label = VersionLabel::Parse(label).value()}, world_->now());
  if (!status.ok()) refusals.push_back(status);
  Drain();
  return call;
}

CallId WorldNode::Update(const VersionSelector& selector, absl::Duration timeout) {
  const CallId call(++calls_);
  const absl::Status status =
      session.Update(call, buffer_, {.selector = selector, .timeout = timeout}, world_->now());
  if (!status.ok()) refusals.push_back(status);
  Drain();
  return call;
}

CallId WorldNode::Unpublish() {
  const CallId call(++calls_);
  const absl::Status status = session.Unpublish(call, buffer_, {}, world_->now());
  if (!status.ok()) refusals.push_back(status);
  Drain();
  return call;
}

CallId WorldNode::Command(RunCommand command) {
  const CallId call(++calls_);
  EXPECT_OK(session.Command(call, std::move(command), world_->now()));
  Drain();
  return call;
}

bool WorldNode::Holds(const std::string& label) const {
  for (uint64_t i = 0; i < kWorldSegments; ++i) {
    if (segments_[i] != World::Truth(label, layout_, i)) return false;
  }
  return true;
}

std::string WorldNode::held_content(const std::vector<std::string>& labels) const {
  for (const std::string& label : labels) {
    if (Holds(label)) return label;
  }
  return "";
}

double WorldNode::held_fraction() const {
  return fill_.has_value() ? static_cast<double>(fill_->held.count()) / kWorldSegments : 0;
}

// ---- the driver

void WorldNode::Drain() {
  while (auto output = session.PollOutput()) Do(*output);
}

void WorldNode::Do(const SessionOutput& output) {
  const absl::Time now = world_->now();
  if (std::holds_alternative<OpenStream>(output)) return world_->OpenStream(this);
  if (std::holds_alternative<CloseStream>(output)) return world_->CloseStream(this);
  if (auto* sent = std::get_if<SendToServer>(&output)) return world_->ToServer(this, sent->message);
  if (auto* start = std::get_if<StartFill>(&output)) return Begin(*start);
  if (auto* set = std::get_if<SetSources>(&output)) return SetSourcesOf(*set);
  if (auto* sealing = std::get_if<StartSealing>(&output)) return Seal(*sealing);
  if (auto* decided = std::get_if<AdmissionDecided>(&output)) return Decided(*decided);
  if (auto* end = std::get_if<SessionEnded>(&output)) ended = *end;
  if (auto* lost = std::get_if<PublicationLost>(&output)) lost_publications.push_back(*lost);
  if (auto* command = std::get_if<CommandDone>(&output))
    commands[command->call] = command->finished;
  if (auto* set = std::get_if<SetRoot>(&output); set != nullptr && fill_.has_value()) {
    fill_->root = set->root;
    CheckComplete();
  }
  if (auto* finished = std::get_if<OperationDone>(&output)) {
    EXPECT_TRUE(done.emplace(finished->call, *finished).second) << "a call has ended twice";
    if (finished->kind == OperationKind::kUpdate) EndFill();
  }
  if (auto* cut = std::get_if<CutReaders>(&output)) {
    for (TransferId transfer : cut->transfers) {
      const auto served = serving_.find(transfer);
      if (served != serving_.end()) {
        WorldNode* reader = served->second.reader;
        const BufferAddress as = served->second.source;
        world_->PostTo(reader, kWorldLatency, [reader, as, transfer] {
          reader->Lose(as, transfer, SourceFailure::kClosed, "cut");
        });
        serving_.erase(served);
      }
      session.HandleReaderReleased(transfer, now);
    }
  }
  if (std::holds_alternative<StopFill>(output)) {
    EndFill();
    session.HandleFillStopped(buffer_, now);
  }
}

void WorldNode::Begin(const StartFill& start) {
  EndFill();
  EXPECT_TRUE(start.resume.empty() || start.resume == checked_) << "resumes what it never had";
  fill_ = Fill{
      .key = start.operation, .version = start.version, .held = start.resume, .root = start.root};
  checked_.Clear();
  CheckComplete();
}

void WorldNode::SetSourcesOf(const SetSources& set) {
  if (!fill_.has_value()) return;
  std::vector<BufferAddress> gone;
  for (const auto& [source, transfer] : fill_->transfers) {
    const bool listed =
        std::any_of(set.sources.begin(), set.sources.end(),
                    [&source = source](const AssignedSource& s) { return s.buffer == source; });
    if (!listed) gone.push_back(source);
  }
  for (const BufferAddress& source : gone) CloseTransfer(source);
  // Alone in a new assignment: there is no other.
  if (set.sources.size() == 1) fill_->corrupt.erase(set.sources.front().buffer);
  for (const AssignedSource& source : set.sources) Open(source, set.assignment);
}

void WorldNode::CloseTransfer(BufferAddress source) {
  const auto found = fill_->transfers.find(source);
  if (found == fill_->transfers.end()) return;
  const TransferId transfer = found->second.id;
  fill_->transfers.erase(found);
  if (WorldNode* node = world_->FindWorker(source.worker)) {
    world_->PostTo(node, kWorldLatency, [node, transfer] { node->ReaderGone(transfer); });
  }
}

void WorldNode::EndFill() {
  if (!fill_.has_value()) return;
  while (!fill_->transfers.empty()) CloseTransfer(fill_->transfers.begin()->first);
  checked_ = fill_->held;
  fill_.reset();
}

void WorldNode::Seal(const StartSealing& sealing) {
  world_->PostTo(this, kSealTime, [this, sealing] {
    session.HandleSealed(sealing.buffer, sealing.version, sealing.generation, RootOfSegments(),
                         world_->now());
    Drain();
  });
}

Digest WorldNode::RootOfSegments() const { return RootOfSums(segments_); }

// ---- reading

WorldNode::Transfer* WorldNode::FindTransfer(const BufferAddress& source, TransferId transfer) {
  if (!fill_.has_value()) return nullptr;
  const auto found = fill_->transfers.find(source);
  return found != fill_->transfers.end() && found->second.id == transfer ? &found->second : nullptr;
}

void WorldNode::Open(const AssignedSource& source, AssignmentId assignment) {
  Transfer& transfer = fill_->transfers[source.buffer];
  transfer.assignment = assignment;
  if (transfer.id != TransferId()) {
    if (transfer.open && !transfer.asked.has_value()) AskNext(source.buffer);
    return;
  }
  transfer.id = world_->NextTransfer();
  transfer.heard = world_->now();
  const BufferAddress as = source.buffer;
  const TransferId id = transfer.id;
  WorldNode* node = world_->FindWorker(source.buffer.worker);
  if (node == nullptr || !node->alive) {
    world_->PostTo(this, kWorldLatency,
                   [this, as, id] { Lose(as, id, SourceFailure::kConnect, ""); });
    return;
  }
  world_->PostTo(
      node, kWorldLatency,
      [this, node, as, id, capability = source.capability, generation = source.generation] {
        node->Asked(this, as, id, capability, generation);
      });
  world_->PostTo(this, kWatchInterval, [this, as, id] { Watch(as, id); });
}

void WorldNode::Opened(BufferAddress source, TransferId id, absl::Status status) {
  Transfer* transfer = FindTransfer(source, id);
  if (transfer == nullptr) return;
  if (!status.ok()) {
    return Lose(
        source, id,
        absl::IsAborted(status) ? SourceFailure::kGenerationChanged : SourceFailure::kRefused,
        std::string(status.message()));
  }
  transfer->open = true;
  transfer->heard = world_->now();
  AskNext(source);
}

void WorldNode::AskNext(const BufferAddress& source) {
  Transfer& transfer = fill_->transfers.at(source);
  SegmentSet asked = fill_->corrupt[source];
  for (const auto& [other, state] : fill_->transfers) {
    if (state.asked.has_value()) asked.Add(SegmentIndex(*state.asked));
  }
  const SegmentRange next =
      fill_->held.FirstMissing(SegmentIndex(0), kWorldSegments, /*max_count=*/1, asked);
  if (next.empty()) return;
  transfer.asked = next.begin.value;
  WorldNode* node = world_->FindWorker(source.worker);
  if (node == nullptr) return;
  world_->PostTo(node, kWorldLatency, [node, id = transfer.id, segment = next.begin.value] {
    node->Serve(id, segment);
  });
}

void WorldNode::Arrived(BufferAddress source, TransferId id, uint64_t segment, uint64_t value,
                        uint64_t sum, const std::string& from) {
  Transfer* transfer = FindTransfer(source, id);
  if (transfer == nullptr) return;
  transfer->heard = world_->now();
  transfer->asked.reset();
  if (value != sum) return Suspect(source, segment);
  if (!std::exchange(fill_->wrote, true)) session.HandleFirstWrite(buffer_, world_->now());
  EXPECT_EQ(state(), BufferState::kFilling) << name_.ToString() << " writes when it must not";
  segments_[segment] = value;
  if (value != World::Truth(fill_->version.label.text(), layout_, segment)) ++torn_segments_;
  fill_->held.Add(SegmentIndex(segment));
  ++segments_from_[from];
  session.HandleFillProgress(buffer_, {fill_->held, fill_->held.count() * kMinSegmentBytes},
                             world_->now());
  CheckComplete();
  Drain();
  // The outputs may have changed the sources.
  if (FindTransfer(source, id) != nullptr) AskNext(source);
}

void WorldNode::Suspect(const BufferAddress& source, uint64_t segment) {
  ++corrupt_segments_;
  Transfer& transfer = fill_->transfers.at(source);
  const TransferId id = transfer.id;
  fill_->corrupt[source].Add(SegmentIndex(segment));
  session.HandleSourceSuspected(buffer_, transfer.assignment, source, "a wrong sum", world_->now());
  Drain();
  if (FindTransfer(source, id) != nullptr) AskNext(source);
}

void WorldNode::KeptAlive(BufferAddress source, TransferId id) {
  if (Transfer* transfer = FindTransfer(source, id)) transfer->heard = world_->now();
}

void WorldNode::Watch(BufferAddress source, TransferId id) {
  Transfer* transfer = FindTransfer(source, id);
  if (transfer == nullptr) return;
  const bool owes = !transfer->open || transfer->asked.has_value();
  if (owes && world_->now() - transfer->heard >= kWorldSilence) {
    return Lose(source, id, SourceFailure::kStalled, "silent for 0.4 s");
  }
  world_->PostTo(this, kWatchInterval, [this, source, id] { Watch(source, id); });
}

void WorldNode::Lose(BufferAddress source, TransferId id, SourceFailure failure,
                     const std::string& detail) {
  Transfer* transfer = FindTransfer(source, id);
  if (transfer == nullptr) return;
  ++sources_lost_;
  const AssignmentId assignment = transfer->assignment;
  CloseTransfer(source);
  session.HandleSourceFailed(buffer_, assignment, source, failure, detail, world_->now());
  Drain();
}

void WorldNode::CheckComplete() {
  if (!fill_.has_value() || fill_->complete || fill_->held.count() != kWorldSegments) return;
  if (!std::exchange(fill_->received, true)) session.HandleAllReceived(buffer_, world_->now());
  if (!fill_->root.has_value()) return;
  EXPECT_EQ(RootOfSegments(), *fill_->root) << name_.ToString();
  fill_->complete = true;
  while (!fill_->transfers.empty()) CloseTransfer(fill_->transfers.begin()->first);
  session.HandleFillComplete(buffer_, RootOfSegments(), world_->now());
}

// ---- serving

void WorldNode::Asked(WorldNode* reader, BufferAddress as, TransferId transfer,
                      Capability capability, BufferGeneration generation) {
  asking_[transfer] = Served{reader, as, capability.claims.version};
  session.HandleAdmission(transfer, as.buffer, capability, generation, world_->now());
  Drain();
}

void WorldNode::Decided(const AdmissionDecided& decided) {
  const auto asking = asking_.find(decided.transfer);
  if (asking == asking_.end()) return;
  const Served served = asking->second;
  asking_.erase(asking);
  if (decided.status.ok()) serving_[decided.transfer] = served;
  world_->PostTo(served.reader, kWorldLatency,
                 [served, transfer = decided.transfer, status = decided.status] {
                   served.reader->Opened(served.source, transfer, status);
                 });
}

bool WorldNode::Readable(uint64_t segment) const {
  if (fill_.has_value()) return fill_->held.Contains(SegmentIndex(segment));
  return state() == BufferState::kUndefined ? checked_.Contains(SegmentIndex(segment)) : true;
}

void WorldNode::Serve(TransferId transfer, uint64_t segment) {
  const auto found = serving_.find(transfer);
  if (found == serving_.end()) return;
  const Served served = found->second;
  session.HandleReaderBytes(transfer, world_->now());
  if (!Readable(segment)) {  // it waits for its own upstream, and says so
    world_->PostTo(served.reader, kWorldLatency,
                   [served, transfer] { served.reader->KeptAlive(served.source, transfer); });
    world_->PostTo(this, kWorldSegmentTime,
                   [this, transfer, segment] { Serve(transfer, segment); });
    return;
  }
  world_->CountCopy(*this);
  const uint64_t sum = segments_[segment];
  const uint64_t value = flips_.erase(segment) > 0 ? sum ^ 1 : sum;
  world_->PostTo(served.reader, kWorldSegmentTime + kWorldLatency,
                 [served, transfer, segment, value, sum, from = name_.ToString()] {
                   served.reader->Arrived(served.source, transfer, segment, value, sum, from);
                 });
}

void WorldNode::ReaderGone(TransferId transfer) {
  asking_.erase(transfer);
  serving_.erase(transfer);
  session.HandleReaderReleased(transfer, world_->now());
  Drain();
}

void WorldNode::BreakTransfers() {
  for (const auto& peers : {asking_, serving_}) {
    for (const auto& [transfer, served] : peers) {
      world_->PostTo(served.reader, kWorldLatency, [served = served, transfer = transfer] {
        served.reader->Lose(served.source, transfer, SourceFailure::kClosed, "");
      });
    }
  }
  if (!fill_.has_value()) return;
  while (!fill_->transfers.empty()) CloseTransfer(fill_->transfers.begin()->first);
}

}  // namespace th
