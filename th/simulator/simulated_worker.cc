#include "th/simulator/simulated_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// How long an unpublish whose readers have gone waits at most while the server says nothing: the
// session asks after 0.5 s and gives the stream up 1 s later.
constexpr absl::Duration kMaxSilentWait = absl::Seconds(2);

SessionOptions OptionsOf(const WorkerSpec& spec, const std::vector<std::string>& addresses) {
  SessionOptions options;
  options.key = spec.key;
  options.name = spec.name;
  options.ranks = spec.ranks;
  options.location = spec.location;
  options.spot = spec.spot;
  options.offload_limit_bytes = spec.offload_limit_bytes;
  for (const std::string& address : addresses) {
    options.endpoints.push_back({.address = address, .transport = kSimulatedTransport, .site = ""});
  }
  return options;
}

}  // namespace

SimulatedWorker::SimulatedWorker(Cluster* cluster, WorkerSpec spec,
                                 std::vector<std::string> addresses)
    : SimulatedProcess(cluster->queue(), spec.location),
      cluster_(cluster),
      spec_(std::move(spec)),
      name_(spec_.name.ToString()),
      addresses_(std::move(addresses)),
      session_(OptionsOf(spec_, addresses_), cluster->spec().session, cluster->spec().coverage) {}

void SimulatedWorker::Begin() {
  session_.Handle(event::Start{}, now());
  const absl::Status registered = RegisterOwnBuffer();
  if (!registered.ok()) return cluster_->checker().Violated(std::string(registered.message()));
  Settle();
}

absl::Status SimulatedWorker::RegisterOwnBuffer() {
  const std::string name = kSimulatedBufferName;
  const SessionAnswer registered = session_.Handle(
      event::RegisterBuffer{name, kDefaultForm, cluster_->LayoutOf(spec_.shard)}, now());
  TH_RETURN_IF_ERROR(registered.status);
  buffer_id_ = registered.buffer;
  holdings_.try_emplace(buffer_id_, name, spec_.shard, cluster_->spec().segment_count);
  names_[buffer_id_] = name;
  return absl::OkStatus();
}

// ---- the caller

CallId SimulatedWorker::BeginCall(const absl::Status& begun, CallId call) {
  if (begun.ok()) {
    ++pending_calls_;
  } else {
    refusals.push_back(begun);
  }
  Settle();
  return call;
}

CallId SimulatedWorker::Publish(const std::string& label, const std::string& content,
                                absl::Duration timeout) {
  return PublishBytes(label, content, content, timeout);
}

CallId SimulatedWorker::PublishFalsely(const std::string& label, const std::string& content,
                                       const std::string& truly) {
  return PublishBytes(label, content, truly, absl::Seconds(10));
}

CallId SimulatedWorker::PublishBytes(const std::string& label, const std::string& content,
                                     const std::string& truly, absl::Duration timeout) {
  const CallId call(++calls_);
  if (state() == BufferState::kWritable) own_buffer().Write(truly);
  PublishRequest request;
  request.label = VersionLabel::Parse(label).value();
  request.attributes = {{kContentAttribute, content}};
  request.timeout = timeout;
  const VersionLabel named = request.label;
  const absl::Status begun =
      session_.Handle(event::Publish{call, buffer_id_, std::move(request)}, now()).status;
  if (begun.ok()) {
    cluster_->checker().Published(named, content, truly);
    published_falsely_ = content != truly;
  }
  return BeginCall(begun, call);
}

CallId SimulatedWorker::Update(VersionSelector selector, absl::Duration timeout) {
  const CallId call(++calls_);
  UpdateRequest request;
  request.selector = std::move(selector);
  request.timeout = timeout;
  request.on_retention = on_retention_;
  request.when_seeding = when_seeding_;
  return BeginCall(
      session_.Handle(event::Update{call, buffer_id_, std::move(request)}, now()).status, call);
}

CallId SimulatedWorker::Unpublish(absl::Duration drain_timeout, absl::Duration timeout) {
  const CallId call(++calls_);
  // A publication that was lost has left its generation already.
  const bool gone = state() == BufferState::kWritable;
  unpublishing_[call] = {
      .under = gone ? BufferGeneration() : session_.buffer_generation(buffer_id_),
      .drained_by = now() + drain_timeout,
      .copies = on_retention_ == OnRetention::kOffload};
  UnpublishRequest request;
  request.drain_timeout = drain_timeout;
  request.timeout = std::max(timeout, drain_timeout);
  request.on_retention = on_retention_;
  return BeginCall(session_.Handle(event::Unpublish{call, buffer_id_, request}, now()).status,
                   call);
}

CallId SimulatedWorker::Command(RunCommand command) {
  const CallId call(++calls_);
  return BeginCall(session_.Handle(event::Command{call, std::move(command)}, now()).status, call);
}

void SimulatedWorker::Reset() {
  const absl::Status status = session_.Handle(event::Reset{buffer_id_}, now()).status;
  if (!status.ok()) refusals.push_back(status);
  Settle();
}

void SimulatedWorker::RegisterAgain() {
  if (!alive() || ended_.has_value()) return;
  const BufferId freed = buffer_id_;  // what is on its way to it still has its name in names_
  session_.Handle(event::UnregisterBuffer{freed},
                  now());  // refused when this was tried while it left
  serving_.EndAllOf(freed);
  ready_ = published_falsely_ = false;
  const absl::Status registered = RegisterOwnBuffer();
  if (!registered.ok()) {
    refusals.push_back(registered);
    return Settle();
  }
  holdings_.at(freed).freed = true;
  CarryOut();  // calls that are pending end
  FreeMemory(freed);
  Settle();
}

void SimulatedWorker::TryRebind() {
  const absl::Status status = session_.CanRebind(buffer_id_);
  if (!status.ok()) refusals.push_back(status);
}

void SimulatedWorker::Leave() {
  session_.Handle(event::Leave{}, now());
  Settle();
}

void SimulatedWorker::Preempt(absl::Duration notice) {
  const absl::Status status = session_.Handle(event::Preempt{notice}, now()).status;
  if (!status.ok()) refusals.push_back(status);
  Settle();
}

std::string SimulatedWorker::Describe() const {
  const char* life = !alive() ? "dead" : stopped() ? "stopped" : "alive";
  return absl::StrCat(
      Name(), " (", addresses_.front(), ") is ", life,
      ended_.has_value() ? absl::StrCat(", ended: ", ended_->status.ToString()) : "",
      session_.joined() ? ", joined" : ", not joined", ready_ ? "" : ", not registered",
      ", waits for ", pending_calls_, " calls, ", session_.Describe(buffer_id_),
      done.empty() ? "" : absl::StrCat(", last heard: ", done.rbegin()->second.status.ToString()),
      refusals.empty() ? "" : absl::StrCat(", last refused: ", refusals.back().ToString()));
}

double SimulatedWorker::held_fraction() const {
  const SimulatedFill* fill = holdings_.at(buffer_id_).fill.get();
  if (fill == nullptr) return 0;
  return static_cast<double>(fill->held().count()) / static_cast<double>(buffer().segment_count());
}

const SimulatedBuffer* SimulatedWorker::FindBuffer(BufferId id) const {
  const auto found = holdings_.find(id);
  return found == holdings_.end() ? nullptr : &found->second.buffer;
}

bool SimulatedWorker::IsStreaming(BufferId buffer) const {
  const auto found = holdings_.find(buffer);
  return found != holdings_.end() && found->second.IsStream();
}

// ---- faults

void SimulatedWorker::CloseEverything(bool report) {
  serving_.BreakAll(report);
  for (auto& [id, holding] : holdings_) {
    if (holding.fill != nullptr) holding.fill->Stop(report);
    holding.fill.reset();
    holding.stopping = false;
    holding.when_stopped.clear();
  }
}

void SimulatedWorker::Kill() {
  if (!alive()) return;
  CloseEverything(/*report=*/true);
  if (stream_.has_value()) cluster_->server().Disconnect(*this, *stream_);
  stream_.reset();
  SetAlive(false);
}

void SimulatedWorker::Crash() {
  if (!alive()) return;
  CloseEverything(/*report=*/false);
  stream_.reset();
  SetAlive(false);
}

void SimulatedWorker::Stop() {
  if (alive()) SetStopped(true);
}

void SimulatedWorker::Continue() {
  if (!stopped()) return;
  SetStopped(false);
  heard_at_ = now();
  ForEachFill([&](SimulatedFill& fill) { fill.ContinueAll(); });
}

void SimulatedWorker::BreakStream() {
  if (!alive() || !stream_.has_value()) return;
  const ConnectionId broken = *stream_;
  cluster_->server().Disconnect(*this, broken);
  RunOrHold([this, broken] {
    HandleStreamClosed(broken, absl::UnavailableError("broken by the network"));
  });
}

void SimulatedWorker::Break(SimulatedServing::Breakage how) {
  if (alive()) serving_.Break(addresses_.front(), how);
}

void SimulatedWorker::SayFalsely(WorkerMessage message) {
  if (!alive() || !stream_.has_value()) return;
  cluster_->Trace([&] { return absl::StrCat(Name(), ": says what is not so: ", message.index()); });
  says_falsely_ = true;
  cluster_->checker().SaysFalsely(spec_.name.group, group_generation_);
  if (const auto* sealed = std::get_if<ShardSealed>(&message)) {
    cluster_->checker().SaysFalseRoot(sealed->version, buffer().shard());
  }
  cluster_->server().Send(this, *stream_, std::move(message));
}

void SimulatedWorker::SayUnheardForATest(WorkerMessage message) {
  cluster_->server().Send(this, *stream_, std::move(message));
}

// ---- the control stream

void SimulatedWorker::HandleStreamOpen(ConnectionId connection) {
  if (stream_ != connection) return;
  heard_at_ = now();
  session_.Handle(event::StreamOpened{}, now());
  Settle();
}

void SimulatedWorker::HandleStreamClosed(ConnectionId connection, absl::Status why) {
  if (stream_ != connection) return;
  stream_.reset();
  heard_at_ = now();
  session_.Handle(event::StreamClosed{std::move(why)}, now());
  Settle();
}

void SimulatedWorker::HandleServerMessage(ConnectionId connection, const ServerMessage& message) {
  if (stream_ != connection) return;
  const auto* refused = std::get_if<Refused>(&message);
  const bool replaced = refused != nullptr && session_.joined() &&
                        absl::StrContains(refused->status.message(), "replaced");
  if (replaced) cluster_->server().JudgeReplaced(*this);
  heard_at_ = now();
  NoteGeneration(message);
  JudgeMessage(message);
  session_.Handle(event::ServerSaid{message}, now());
  Settle();
}

void SimulatedWorker::NoteGeneration(const ServerMessage& message) {
  const SimulatedServer& server = cluster_->server();
  if (auto* joined = std::get_if<Joined>(&message)) {
    if (joined->epoch < session_.epoch()) return;  // the session does not believe it
    const bool another =
        epoch_id_ == EpochId() || group_generation_ != joined->group_generation.value;
    epoch_id_ = joined->epoch_id;
    if (another) generation_numbered_by_ = server.DiskOf(epoch_id_);
    group_generation_ = joined->group_generation.value;
  } else if (auto* changed = std::get_if<GroupChanged>(&message)) {
    generation_numbered_by_ = server.DiskOf(epoch_id_);
    group_generation_ = changed->group_generation.value;
  }
  // Its words may be answered in a later generation.
  if (says_falsely_) cluster_->checker().SaysFalsely(spec_.name.group, group_generation_);
}

uint64_t SimulatedWorker::state_joined() const { return cluster_->server().DiskOf(epoch_id_); }

void SimulatedWorker::JudgeMessage(const ServerMessage& message) {
  const bool judged = std::holds_alternative<OperationResolved>(message) ||
                      std::holds_alternative<OperationFinished>(message);
  if (!judged) return;
  InvariantChecker::GroupOperation operation{.generation = group_generation_,
                                             .numbered_by = generation_numbered_by_,
                                             .group = spec_.name.group,
                                             .run = spec_.key.run,
                                             .model = spec_.key.model};
  if (auto* resolved = std::get_if<OperationResolved>(&message)) {
    const auto name = names_.find(resolved->key.buffer);
    if (name == names_.end()) return;
    operation.buffer = name->second;
    operation.number = resolved->key.number;
    cluster_->checker().HeardResolved(this, operation, resolved->version.sequence);
    ReportWait(resolved->key.buffer, WaitsFor::kDrain);
  } else if (auto* finished = std::get_if<OperationFinished>(&message)) {
    const auto name = names_.find(finished->key.buffer);
    if (name == names_.end()) return;
    operation.buffer = name->second;
    operation.number = finished->key.number;
    cluster_->Trace([&] {
      return absl::StrCat(Name(), ": operation ", finished->key.number.value, " of ",
                          operation.buffer, ", generation ", group_generation_, " ended, kind ",
                          finished->kind, " outcome ", finished->outcome, " #",
                          finished->version.sequence.ToString(), " ", finished->status.ToString());
    });
    cluster_->checker().HeardFinished(this, operation, epoch_id_, state_joined(), *finished);
    last_results_[finished->key.buffer] = *finished;
  }
}

// ---- the data plane

bool SimulatedWorker::lists_checksums() const {
  const uint32_t every = cluster_->spec().lists_no_checksums_every;
  return every == 0 || spec_.name.rank.value % every != 0;
}

void SimulatedWorker::HandleChunkDelivered(TransferId transfer) {
  serving_.HandleChunkDelivered(transfer);
}

void SimulatedWorker::HandlePullOpened(SimulatedWorker* reader, TransferId transfer,
                                       const std::string& address, const Capability& capability,
                                       BufferGeneration generation) {
  serving_.Open(reader, transfer, address, capability, generation);
  Settle();
}

void SimulatedWorker::HandlePullAsked(TransferId transfer, SegmentRange range) {
  serving_.Ask(transfer, range);
  Settle();
}

void SimulatedWorker::HandlePullAskedChecksums(TransferId transfer) {
  serving_.AskChecksums(transfer);
}

void SimulatedWorker::HandlePullFinished(TransferId transfer) {
  serving_.FinishByReader(transfer);
  Settle();
}

void SimulatedWorker::HandlePullClosed(TransferId transfer) {
  serving_.CloseByReader(transfer);
  Settle();
}

void SimulatedWorker::HandlePullContinues(TransferId transfer) { serving_.Pump(transfer); }

void SimulatedWorker::HandlePullAdmitted(TransferId transfer, absl::Status status) {
  ForEachFill([&](SimulatedFill& fill) { fill.HandleAdmitted(transfer, status); });
  Settle();
}

void SimulatedWorker::HandleChecksums(TransferId transfer, SegmentIndex first,
                                      const std::vector<SegmentChecksum>& checksums) {
  ForEachFill([&](SimulatedFill& fill) { fill.HandleChecksums(transfer, first, checksums); });
  Settle();
  serving_.PumpAll();
}

void SimulatedWorker::HandleSegment(TransferId transfer, const SentSegment& segment) {
  ForEachFill([&](SimulatedFill& fill) { fill.HandleSegment(transfer, segment); });
  SettleAfterBytes();
  serving_.PumpAll();
}

void SimulatedWorker::HandleSourceAlive(TransferId transfer) {
  ForEachFill([&](SimulatedFill& fill) { fill.HandleAlive(transfer); });
}

void SimulatedWorker::HandleSourceClosed(TransferId transfer, const std::string& why) {
  cluster_->Trace([&] { return absl::StrCat(Name(), ": a source is gone: ", why); });
  ForEachFill([&](SimulatedFill& fill) { fill.HandleClosed(transfer, why); });
  Settle();
}

void SimulatedWorker::HandlePathBroken(TransferId transfer, const std::string& why) {
  cluster_->Trace([&] { return absl::StrCat(Name(), ": the path to a source broke: ", why); });
  ForEachFill([&](SimulatedFill& fill) { fill.HandlePathBroken(transfer, why); });
  Settle();
}

void SimulatedWorker::HandleFillTick(OperationKey operation) {
  SimulatedFill* const fill = FindFill(operation);
  if (fill == nullptr) return;
  fill->HandleTick();
  SettleAfterBytes();
}

// ---- the driver

// The name of the caller's own buffer; while a copy is made the caller waits for the server's
// leave.
std::string SimulatedWorker::NameOf(BufferId buffer) const {
  const auto found = names_.find(buffer);
  return found == names_.end() ? absl::StrCat(buffer.value) : found->second;
}

void SimulatedWorker::CountAccepted(const std::string& source) {
  ++segments_from_[source];
  if (on_accepted != nullptr) on_accepted(source);
}

void SimulatedWorker::Settle() {
  CarryOut();
  WakeAt(session_.NextDeadline());
}

void SimulatedWorker::SettleAfterBytes() {
  if (CarryOut()) WakeAt(session_.NextDeadline());
}

bool SimulatedWorker::CarryOut() {
  bool anything = false;
  for (;; anything = true) {
    for (auto& [id, holding] : holdings_) {
      if (holding.fill == nullptr) continue;
      for (const FillOutput& event : holding.fill->TakeEvents()) {
        HandleFillOutput(id, event);
        anything = true;
      }
    }
    auto output = session_.PollOutput();
    if (output.has_value()) {
      Do(*std::move(output));
    } else if (!AnyFillHasEvents()) {
      return anything;
    }
  }
}

void SimulatedWorker::Do(SessionOutput output) {
  if (std::holds_alternative<OpenStream>(output)) {
    stream_ = cluster_->server().Connect(this);
  } else if (std::holds_alternative<CloseStream>(output)) {
    if (stream_.has_value()) cluster_->server().Disconnect(*this, *stream_);
    stream_.reset();
  } else if (auto* sent = std::get_if<SendToServer>(&output)) {
    Do(std::move(*sent));
  } else if (auto* start = std::get_if<StartFill>(&output)) {
    Do(*start);
  } else if (auto* set = std::get_if<SetSources>(&output)) {
    Do(*set);
  } else if (auto* root = std::get_if<SetRoot>(&output)) {
    Do(*root);
  } else if (auto* stop = std::get_if<StopFill>(&output)) {
    Do(*stop);
  } else if (auto* sealing = std::get_if<StartSealing>(&output)) {
    Do(*sealing);
  } else if (auto* cut = std::get_if<CutReaders>(&output)) {
    serving_.End(cut->transfers, ServingEnd::kNow);
  } else if (auto* finish = std::get_if<FinishReaders>(&output)) {
    serving_.End(finish->transfers, ServingEnd::kAfterSegment);
  } else if (auto* decided = std::get_if<AdmissionDecided>(&output)) {
    serving_.Decide(*decided);
  } else if (auto* asked = std::get_if<AllocateOffload>(&output)) {
    Do(*asked);
  } else if (auto* freed = std::get_if<FreeOffload>(&output)) {
    Do(*freed);
  } else if (auto* registered = std::get_if<BufferReady>(&output)) {
    Do(*registered);
  } else if (auto* finished = std::get_if<OperationDone>(&output)) {
    Do(*finished);
  } else if (auto* command = std::get_if<CommandDone>(&output)) {
    --pending_calls_;
    commands[command->call] = command->finished;
  } else if (auto* lost = std::get_if<PublicationLost>(&output)) {
    lost_publications.push_back(*lost);
  } else if (auto* end = std::get_if<SessionEnded>(&output)) {
    ended_ = *end;
    if (!end->status.ok()) cluster_->server().JudgeEnd(*this);
    StopAllFills();
    CloseEverything(/*report=*/true);
    DropReceives();
  }
}

void SimulatedWorker::Do(SendToServer sent) {
  if (auto* ready = std::get_if<ReadyToFill>(&sent.message)) {
    ReportWait(ready->key.buffer, WaitsFor::kSource);
  } else if (auto* rank_done = std::get_if<RankDone>(&sent.message)) {
    ReportWait(rank_done->key.buffer, WaitsFor::kGroup);
  } else if (auto* start = std::get_if<StartOperation>(&sent.message)) {
    if (start->key.buffer == buffer_id_) newest_operation_ = start->key;
  }
  if (stream_.has_value()) cluster_->server().Send(this, *stream_, std::move(sent.message));
}

void SimulatedWorker::Do(const BufferReady& registered) {
  if (registered.buffer != buffer_id_) {
    return BeginStreamUpdate(registered.buffer, registered.status);
  }
  const bool first = !std::exchange(ready_, registered.status.ok());
  if (first && ready_ && on_ready != nullptr) on_ready();
}

void SimulatedWorker::Do(const StartSealing& sealing) {
  Post(cluster_->spec().sealing_time, [this, sealing] {
    // Unpublished since, or gone.
    if (session_.buffer_generation(sealing.buffer) != sealing.generation) return;
    const SimulatedBuffer* buffer = FindBuffer(sealing.buffer);
    if (buffer == nullptr) return;
    session_.Handle(
        event::Sealed{sealing.buffer, sealing.version, sealing.generation, buffer->Root()}, now());
    Settle();
  });
}

// The caller may write or read the buffer next: nothing may land in it any more.
void SimulatedWorker::Do(const OperationDone& finished) {
  WhenQuiet(finished.buffer, [this, finished] { HearDone(finished); });
}

void SimulatedWorker::HearDone(const OperationDone& finished) {
  --pending_calls_;
  const bool first_end = done.emplace(finished.call, finished).second;
  cluster_->checker().Expect(first_end, "a call has ended twice", Name());
  if (finished.kind == OperationKind::kUpdate) TakeBack(finished.buffer);
  JudgeDone(finished);
  NoteStreamDone(finished);
  if (finished.buffer == buffer_id_ && state() == BufferState::kWritable) {
    own_buffer().Write(absl::StrCat("what ", addresses_.front(), " computes, ", ++writes_));
  }
  if (on_done != nullptr) on_done(finished);
}

// A rank may end it without the server.
void SimulatedWorker::JudgeUnpublished(const OperationDone& finished) {
  const auto ended = unpublishing_.extract(finished.call);
  if (ended.empty()) return;
  const Unpublishing& unpublishing = ended.mapped();
  const absl::Time silent_since = std::max(heard_at_, unpublishing.drained_by);
  cluster_->checker().Expect(unpublishing.copies || now() - silent_since <= kMaxSilentWait,
                             "has waited with an unpublish for a server that was silent", Name());
  cluster_->checker().Expect(
      !finished.status.ok() || session_.buffer_generation(buffer_id_) > unpublishing.under,
      "unpublished under the same generation", Name());
}

void SimulatedWorker::JudgeDone(const OperationDone& finished) {
  if (finished.kind == OperationKind::kUnpublish) return JudgeUnpublished(finished);
  if (!finished.status.ok()) return;
  const OperationFinished& last = last_results_[finished.buffer];
  const bool beside = finished.buffer != buffer_id_;
  const bool staged = beside && !IsStreaming(finished.buffer);
  const bool reported = last.status.ok() && last.kind == finished.kind &&
                        (staged || last.outcome == finished.outcome) &&
                        last.version.sequence == finished.version.sequence;
  cluster_->checker().Expect(reported, "tells its caller what the server has not said", Name());
  cluster_->checker().Expect(
      finished.not_available != NotAvailableReason::kSeeding || when_seeding_ != WhenSeeding::kWait,
      "is told to ask later, and wanted to wait", Name());
  if (staged) return JudgeStaged(finished, last);
  if (beside) return;
  // A rank that lied about its own publication, and has not filled since, is told that it is there
  // until its sums are known; or that it has moved, where another rank of its group did not have it
  // any more.
  const bool moved = !published_falsely_ && (finished.outcome == UpdateOutcome::kMoved ||
                                             finished.outcome == UpdateOutcome::kAlreadyThere);
  if (moved) cluster_->checker().Moved(Name(), finished.version, buffer(), state_joined());
}

// ---- time

void SimulatedWorker::HandleWake() {
  if (now() >= session_.NextDeadline()) session_.Handle(event::Tick{}, now());
  Settle();
}

}  // namespace th
