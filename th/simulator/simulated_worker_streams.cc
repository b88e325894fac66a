// Streaming receives of a simulated worker, driven as //th/client does.
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// As kRegisterTimeout in th/client.
constexpr absl::Duration kMaxRegistration = absl::Seconds(30);

}  // namespace

void SimulatedWorker::Receive(ReceiveSpec spec) {
  const StreamTicket ticket = session_.Handle(event::BeginStream{}, now()).ticket;
  const SessionAnswer registered =
      session_.Handle(event::RegisterStreamBuffer{ticket, kDefaultForm,
                                                  cluster_->LayoutOf(spec_.shard), spec.wanted},
                      now());
  if (!registered.status.ok()) {
    refusals.push_back(registered.status);
    return Settle();
  }
  const BufferId buffer = registered.buffer;
  ++pending_calls_;
  const std::string name = absl::StrCat("stream-", ticket.generation.value, ".", ticket.number);
  Holding& holding =
      holdings_.try_emplace(buffer, name, spec_.shard, cluster_->spec().segment_count)
          .first->second;
  names_[buffer] = name;
  holding.stream = std::make_unique<SimulatedStream>(this, buffer, std::move(spec));
  Post(kMaxRegistration, [this, buffer] {
    const SimulatedStream* stream = FindStream(buffer);
    if (stream != nullptr && !stream->begun()) GiveUpStream(buffer);
    Settle();
  });
  Settle();
}

void SimulatedWorker::FailReceive() {
  const StreamTicket ticket = session_.Handle(event::BeginStream{}, now()).ticket;
  session_.Handle(
      event::FailStream{ticket, kDefaultForm,
                        absl::AbortedError("found nothing to receive when it began; ask again")},
      now());
  Settle();
}

SimulatedStream* SimulatedWorker::FindStream(BufferId buffer) {
  const auto found = holdings_.find(buffer);
  return found == holdings_.end() ? nullptr : found->second.stream.get();
}

void SimulatedWorker::BeginStreamUpdate(BufferId buffer, const absl::Status& registered) {
  SimulatedStream* const stream = FindStream(buffer);
  if (stream == nullptr) return;
  if (!registered.ok()) return GiveUpStream(buffer);
  stream->NoteBegun();
  const CallId call(++calls_);
  const absl::Status begun = session_
                                 .Handle(event::Update{call,
                                                       buffer,
                                                       {.selector = stream->spec().selector,
                                                        .timeout = stream->spec().timeout}},
                                         now())
                                 .status;
  if (!begun.ok()) EndStream(buffer, begun);
  BeginCall(begun, call);
}

void SimulatedWorker::GiveUpStream(BufferId buffer) {
  if (!ended_.has_value()) session_.Handle(event::UnregisterBuffer{buffer}, now());
  names_.erase(buffer);
  DropReceive(buffer);
}

void SimulatedWorker::EndStream(BufferId buffer, const absl::Status& why) {
  session_.Handle(event::EndStream{buffer, why}, now());
  DropReceive(buffer);
}

void SimulatedWorker::DropReceive(BufferId buffer) {
  EndFill(buffer);
  serving_.EndAllOf(buffer);
  holdings_.erase(buffer);
  --pending_calls_;
}

void SimulatedWorker::DropReceives() {
  for (const BufferId buffer : BuffersThat(&Holding::IsStream)) DropReceive(buffer);
}

void SimulatedWorker::NoteStreamDone(const OperationDone& finished) {
  SimulatedStream* const stream = FindStream(finished.buffer);
  if (stream == nullptr) return;
  const bool moved = finished.status.ok() && finished.outcome == UpdateOutcome::kMoved;
  if (!moved) {
    return EndStream(finished.buffer,
                     finished.status.ok() ? absl::CancelledError("nothing came") : finished.status);
  }
  cluster_->checker().Expect(stream->whole(), "is told that it has received what it has not",
                             name_);
  const bool part = stream->spec().wanted.count() < cluster_->spec().segment_count;
  if (!part)
    cluster_->checker().Moved(name_, finished.version, *FindBuffer(finished.buffer),
                              state_joined());
  stream->NoteMoved();
  FinishStreamIfTaken(finished.buffer);
}

void SimulatedWorker::FinishStreamIfTaken(BufferId buffer) {
  const SimulatedStream* const stream = FindStream(buffer);
  if (!stream->took_all() || !stream->moved()) return;
  EndStream(buffer, absl::CancelledError("the receive is over"));
  ++received_;
}

void SimulatedWorker::HandleStreamTake(BufferId buffer) {
  SimulatedStream* const stream = FindStream(buffer);
  if (stream == nullptr) return;
  const SegmentIndex taken = stream->next();
  if (!stream->Take()) {
    EndStream(buffer, absl::InternalError("its consumer fails"));
    return Settle();
  }
  if (SimulatedFill* fill = holdings_.at(buffer).fill.get()) fill->HandleConsumed(taken.Next());
  FinishStreamIfTaken(buffer);
  Settle();
}

}  // namespace th
