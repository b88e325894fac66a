#include "th/bench/session_fleet.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/client/grpc_control_stream.h"
#include "th/client/server_list.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/worker_session/worker_session.h"

namespace th {
namespace {

constexpr uint64_t kSegments = 64;  // of a shard
constexpr uint32_t kGroupsPerRack = 8;
// Where a worker's buffers could be read, if anybody asked.
constexpr char kNowhere[] = "127.0.0.1:1";

std::shared_ptr<const ShardLayout> LayoutOf(uint32_t rank) {
  ShardLayout::Spec spec{.segment_bytes = kMinSegmentBytes};
  spec.tensors.push_back({.name = absl::StrCat("rank-", rank),
                          .dtype = DType::kU8,
                          .shape = {static_cast<int64_t>(kSegments * kMinSegmentBytes)}});
  // Constants, but for a number in the name.
  return std::make_shared<const ShardLayout>(ShardLayout::Build(std::move(spec)).value());
}

// The root to which the sums of a shard would come.
Digest RootOf(const VersionInfo& version, uint32_t rank) {
  return Sha256(absl::StrCat(version.label.text(), " shard ", rank));
}

SessionOptions SessionOptionsOf(const FleetOptions& options, FleetRank who) {
  SessionOptions session;
  session.key = {kFleetRun, kFleetModel};
  session.name = {FleetGroupName(who.group), Rank(who.rank)};
  session.ranks = options.ranks;
  session.location = {.site = "site",
                      .rack = absl::StrCat("rack-", who.group / kGroupsPerRack),
                      .host = absl::StrCat("host-", who.group)};
  session.endpoints = {{.address = kNowhere}};
  session.software = "th bench";
  return session;
}

}  // namespace

std::string FleetGroupName(uint32_t group) { return absl::StrCat("group-", group); }

// The state that workers and their streams may need after the fleet has gone.
struct SessionFleet::Shared {
  const FleetOptions options;
  FleetEvents events;  // th-control only; emptied when the fleet ends
  bool ended = false;  // th-control only

  absl::Mutex mu;
  size_t open_streams ABSL_GUARDED_BY(mu) = 0;
};

// One session and its stream; everything but the stream's messages happens on th-control.
class SessionFleet::Worker final : public ControlStreamObserver,
                                   public std::enable_shared_from_this<Worker> {
 public:
  Worker(std::shared_ptr<Shared> shared, std::shared_ptr<Runtime> runtime,
         std::shared_ptr<ControlByteCount> bytes, FleetRank who,
         std::shared_ptr<const ShardLayout> layout)
      : shared_(std::move(shared)),
        runtime_(std::move(runtime)),
        who_(who),
        layout_(std::move(layout)),
        connector_(MakeGrpcConnector(ServerList::Parse(shared_->options.server).value(),
                                     std::move(bytes), runtime_)),
        session_(SessionOptionsOf(shared_->options, who),
                 SessionLimits{.join_timeout = shared_->options.join_timeout}) {}

  // ---- th-control

  void Join() {
    Handle(event::Start{});
    const SessionAnswer registered = Handle(event::RegisterBuffer{"weights", "hf", layout_});
    buffer_ = registered.buffer;
    FailUnlessOk(registered.status);
  }
  void Publish(const VersionLabel& label) {
    const absl::Duration timeout = shared_->options.update_timeout;
    FailUnlessOk(
        Handle(event::Publish{NextCall(), buffer_, {.label = label, .timeout = timeout}}).status);
  }
  void Update(const VersionSelector& selector) { UpdateBuffer(buffer_, selector); }
  void Receive(const VersionSelector& selector) {
    const StreamTicket ticket = Handle(event::BeginStream{}).ticket;
    const SessionAnswer registered = Handle(event::RegisterStreamBuffer{
        ticket, kDefaultForm, layout_, SegmentSet::AllOf(layout_->segment_count())});
    FailUnlessOk(registered.status);
    if (registered.status.ok()) stream_buffer_ = registered.buffer;
    stream_selector_ = selector;
  }
  void Leave() { Handle(event::Leave{}); }
  void Cut() {
    if (last_stream_ != nullptr) last_stream_->Cancel();
  }

  // ---- ControlStreamObserver: messages on gRPC's threads, the end on th-control

  void OnServerMessage(StreamId stream, const ServerMessage& message) override {
    runtime_->control().Post([self = shared_from_this(), stream, message] {
      if (stream != self->open_stream_) return;
      self->Handle(event::ServerSaid{message});
    });
  }

  void OnStreamClosed(StreamId stream, absl::Status why) override {
    {
      absl::MutexLock lock(&shared_->mu);
      --shared_->open_streams;
    }
    if (stream != open_stream_) return;
    open_stream_ = {};
    stream_ = nullptr;
    if (why.ok()) why = absl::UnavailableError("the server ended the stream");
    Handle(event::StreamClosed{std::move(why)});
  }

 private:
  struct FillInProgress {
    BufferId buffer;
    VersionInfo version;
    std::optional<Digest> root;
    bool sourced = false;
  };

  // An event, and all that the session asks for because of it. Within one it only adds to that.
  SessionAnswer Handle(SessionEvent event) {
    SessionAnswer answer = session_.Handle(std::move(event), MonotonicNow());
    Pump();
    return answer;
  }

  void Pump() {
    if (std::exchange(pumping_, true)) return;
    const absl::Time now = MonotonicNow();
    if (session_.NextDeadline() <= now) session_.Handle(event::Tick{}, now);
    while (std::optional<SessionOutput> output = session_.PollOutput()) {
      std::visit([this](auto& each) { this->Do(each); }, *output);
    }
    pumping_ = false;
    ArmTimer();
  }

  // A deadline that has moved away is left to fire in vain: it then arms the next.
  void ArmTimer() {
    const absl::Time next = session_.ended() ? absl::InfiniteFuture() : session_.NextDeadline();
    if (next >= timer_at_) return;
    timer_at_ = next;
    runtime_->control().PostAfter(next - MonotonicNow(), [weak = weak_from_this(), next] {
      const std::shared_ptr<Worker> self = weak.lock();
      if (self == nullptr) return;
      if (self->timer_at_ == next) self->timer_at_ = absl::InfiniteFuture();
      self->Pump();
    });
  }

  CallId NextCall() { return last_call_ = last_call_.Next(); }

  void FailUnlessOk(const absl::Status& status) {
    if (!status.ok() && shared_->events.on_failed != nullptr) {
      shared_->events.on_failed(who_, status);
    }
  }

  // ---- what the session asks for

  void Do(const OpenStream&) {
    CloseStreamNow();
    open_stream_ = next_stream_ = next_stream_.Next();
    {
      absl::MutexLock lock(&shared_->mu);
      ++shared_->open_streams;
    }
    stream_ = connector_->Open(open_stream_, shared_from_this());
    last_stream_ = stream_;
    Handle(event::StreamOpened{});
  }
  void Do(const CloseStream&) { CloseStreamNow(); }
  void CloseStreamNow() {
    open_stream_ = {};
    if (const auto closing = std::exchange(stream_, nullptr)) closing->Finish();
  }
  void Do(const SendToServer& send) {
    if (stream_ != nullptr) stream_->Send(send.message);
  }
  void Do(const SessionJoined&) {}
  void Do(const SessionEnded& ended) {
    CloseStreamNow();
    if (!shared_->ended) FailUnlessOk(ended.status);
  }
  void Do(const BufferReady& ready) {
    FailUnlessOk(ready.status);
    if (ready.buffer == stream_buffer_) return UpdateBuffer(stream_buffer_, stream_selector_);
    if (!ready.status.ok() || std::exchange(registered_, true)) return;
    if (shared_->events.on_registered != nullptr) shared_->events.on_registered(who_);
  }

  void UpdateBuffer(BufferId buffer, const VersionSelector& selector) {
    const absl::Duration timeout = shared_->options.update_timeout;
    FailUnlessOk(
        Handle(event::Update{NextCall(), buffer, {.selector = selector, .timeout = timeout}})
            .status);
  }

  void Do(const StartSealing& order) {
    const Digest root = RootOf(session_.buffer_version(buffer_), who_.rank);
    Handle(event::Sealed{order.buffer, order.version, order.generation, root});
  }

  void Do(const StartFill& order) {
    fill_ = {.buffer = order.buffer, .version = order.version, .root = order.root};
    CompleteFill();
  }
  void Do(const SetSources& order) {
    if (!fill_.has_value() || order.sources.empty()) return;
    fill_->sourced = true;
    if (shared_->events.on_assigned != nullptr) shared_->events.on_assigned(who_);
    CompleteFill();
  }
  void Do(const SetRoot& order) {
    if (!fill_.has_value() || fill_->version.sequence != order.version) return;
    fill_->root = order.root;
    CompleteFill();
  }
  void CompleteFill() {
    if (!fill_->sourced || !fill_->root.has_value()) return;
    const FillInProgress fill = *std::exchange(fill_, std::nullopt);
    // The session itself compares it with what the publisher told.
    const Digest root = RootOf(fill.version, who_.rank);
    Handle(event::FirstWrite{fill.buffer});
    Handle(event::AllReceived{fill.buffer});
    Handle(event::FillCompleted{fill.buffer, root});
  }
  void Do(const StopFill& order) {
    fill_.reset();
    Handle(event::FillStopped{order.buffer});
  }

  void Do(const OperationDone& done) {
    if (done.buffer == stream_buffer_) return EndReceive(done);
    if (shared_->events.on_done != nullptr) shared_->events.on_done(who_, done);
  }

  void EndReceive(const OperationDone& done) {
    Handle(event::EndStream{std::exchange(stream_buffer_, BufferId()),
                            absl::CancelledError("the receive is over")});
    if (shared_->events.on_received != nullptr) shared_->events.on_received(who_, done);
  }

  // Nobody reads from anybody, and nobody gives commands.
  void Do(const CutReaders&) {}
  void Do(const FinishReaders&) {}
  void Do(const ServingChanged&) {}
  void Do(const AdmissionDecided&) {}
  void Do(const CommandDone&) {}
  // Nobody asks for copies of what is retained.
  void Do(const AllocateOffload& order) {
    Handle(event::OffloadAllocated{order.copy,
                                   absl::ResourceExhaustedError("the fleet has no memory")});
  }
  void Do(const FreeOffload&) {}
  void Do(const PublicationLost& lost) {
    if (!shared_->ended) FailUnlessOk(lost.status);  // else the others of its group left before it
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Runtime> runtime_;
  const FleetRank who_;
  const std::shared_ptr<const ShardLayout> layout_;  // shared by all of this rank
  const std::unique_ptr<ControlConnector> connector_;
  WorkerSession session_;
  BufferId buffer_;
  BufferId stream_buffer_;  // of the receive under way; 0: none
  VersionSelector stream_selector_;
  bool registered_ = false;
  CallId last_call_;
  std::optional<FillInProgress> fill_;
  bool pumping_ = false;
  absl::Time timer_at_ = absl::InfiniteFuture();
  StreamId next_stream_, open_stream_;          // 0: none
  std::shared_ptr<ControlStream> stream_;       // the open one
  std::shared_ptr<ControlStream> last_stream_;  // also while it ends
};

SessionFleet::SessionFleet(FleetOptions options, FleetEvents events)
    : runtime_(Runtime::Acquire()),
      bytes_(std::make_shared<ControlByteCount>(0)),
      shared_(new Shared{.options = std::move(options), .events = std::move(events)}) {
  const uint32_t groups = shared_->options.groups, ranks = shared_->options.ranks;
  workers_.reserve(size_t{groups} * ranks);
  std::vector<std::shared_ptr<const ShardLayout>> layouts;
  layouts.reserve(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) layouts.push_back(LayoutOf(rank));
  for (uint32_t group = 0; group < groups; ++group) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      workers_.push_back(std::make_shared<Worker>(shared_, runtime_, bytes_, FleetRank{group, rank},
                                                  layouts[rank]));
    }
  }
}

SessionFleet::~SessionFleet() {
  runtime_->RunOnControl([this] {
    shared_->ended = true;
    shared_->events = {};
    for (const auto& worker : workers_) worker->Leave();
  });
  const auto all_ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(shared_->mu) {
    return shared_->open_streams == 0;
  };
  const auto await = [&] {
    absl::MutexLock lock(&shared_->mu);
    return shared_->mu.AwaitWithTimeout(absl::Condition(&all_ended), kFleetLeaveTimeout);
  };
  if (!await()) {
    runtime_->RunOnControl([this] {
      for (const auto& worker : workers_) worker->Cut();
    });
    (void)await();
  }
  // On th-control, which holds what of them is still posted.
  runtime_->RunOnControl([this] { workers_.clear(); });
}

void SessionFleet::JoinAll() {
  runtime_->control().Post([workers = workers_] {
    for (const auto& worker : workers) worker->Join();
  });
}

template <typename Verb>
void SessionFleet::ForGroup(uint32_t group, Verb verb) {
  const uint32_t ranks = shared_->options.ranks;
  const auto first = workers_.begin() + size_t{group} * ranks;
  runtime_->control().Post(
      [workers = std::vector<std::shared_ptr<Worker>>(first, first + ranks), verb] {
        for (const auto& worker : workers) verb(*worker);
      });
}

void SessionFleet::Publish(uint32_t group, VersionLabel label) {
  ForGroup(group, [label = std::move(label)](Worker& worker) { worker.Publish(label); });
}

void SessionFleet::Update(uint32_t group, VersionSelector selector) {
  ForGroup(group, [selector = std::move(selector)](Worker& worker) { worker.Update(selector); });
}

void SessionFleet::Receive(uint32_t group, VersionSelector selector) {
  ForGroup(group, [selector = std::move(selector)](Worker& worker) { worker.Receive(selector); });
}

void SessionFleet::After(absl::Duration delay, std::function<void()> task) {
  runtime_->control().PostAfter(delay, [shared = shared_, task = std::move(task)] {
    if (!shared->ended) task();
  });
}

}  // namespace th
