#include "th/server/registry_loop.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "th/coordination/epoch_start.h"

namespace th {
namespace {

RegistryStart StartOf(const OpenedState& opened, absl::Time now) {
  RegistryStart start{.epoch = opened.epoch,
                      .identity = opened.identity,
                      .durable = opened.durable,
                      .recovering = opened.started_before,
                      .now = now};
  for (uint64_t& part : start.key_seed) part = RandomFromSystem();
  return start;
}

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

RegistryLoop::RegistryLoop(Options options, ServerMetrics* metrics)
    : now_(std::move(options.now)),
      pulse_interval_(options.pulse_interval),
      metrics_(metrics),
      store_(std::move(options.store)),
      limits_(options.limits),
      epoch_(store_->opened().epoch.value),
      first_message_timeout_(options.first_message_timeout),
      close_grace_(options.close_grace),
      on_failure_(std::move(options.on_failure)),
      on_event_(std::move(options.on_event)),
      pause_watch_(now_()),
      registry_(std::make_unique<Registry>(StartOf(store_->opened(), now_()), limits_)),
      heard_until_(now_()),
      thread_([this] { Run(); }),
      pulse_thread_([this] { RunPulse(); }) {}

RegistryLoop::~RegistryLoop() { Stop(); }

// ---------------------------------------------------------------------------------------------
// Any thread

ConnectionId RegistryLoop::Open(std::shared_ptr<StreamPeer> peer) {
  ConnectionId connection;
  {
    absl::MutexLock lock(&mutex_);
    connection = ConnectionId(++last_connection_);
  }
  Post([this, connection, peer = std::move(peer)]() mutable {
    OnOpen(connection, std::move(peer));
  });
  return connection;
}

void RegistryLoop::HandleMessage(ConnectionId connection, WorkerMessage message) {
  Post([this, connection, message = std::move(message)] { OnMessage(connection, message); });
}

void RegistryLoop::HandleBadFrame(ConnectionId connection, absl::Status why) {
  Post([this, connection, why = std::move(why)] {
    if (!Listens(connection) || refusing_.has_value()) return;
    LOG(WARNING) << "stream " << connection << " sent what cannot be read; closing it: " << why;
    Absorb(registry_->HandleDisconnect(connection, now_()));
    Refuse(connection, why, absl::InfiniteDuration());
  });
}

void RegistryLoop::HandleDisconnect(ConnectionId connection) {
  Post([this, connection] { OnDisconnect(connection); });
}

absl::Status RegistryLoop::Ask(Question question, Asker asker) {
  {
    absl::MutexLock lock(&mutex_);
    if (asker == Asker::kController && pending_questions_ >= kMaxPendingQuestions) {
      metrics_->calls_refused.fetch_add(1, std::memory_order_relaxed);
      return absl::ResourceExhaustedError(
          absl::StrCat("the server has ", kMaxPendingQuestions, " calls to answer; try again"));
    }
    ++pending_questions_;
  }
  if (asker == Asker::kController) metrics_->calls.fetch_add(1, std::memory_order_relaxed);
  if (Post([this, question = std::move(question)]() mutable { OnQuestion(question); })) {
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  --pending_questions_;
  return absl::UnavailableError("the server is shutting down");
}

absl::StatusOr<VersionWaitId> RegistryLoop::Wait(VersionWait wait) {
  VersionWaitId id;
  {
    absl::MutexLock lock(&mutex_);
    if (pending_waits_ >= kMaxWaits) {
      metrics_->calls_refused.fetch_add(1, std::memory_order_relaxed);
      return absl::ResourceExhaustedError(
          absl::StrCat("the server has ", kMaxWaits, " controllers that wait; try again"));
    }
    ++pending_waits_;
    id = VersionWaitId(++last_wait_);
  }
  metrics_->calls.fetch_add(1, std::memory_order_relaxed);
  metrics_->waits.fetch_add(1, std::memory_order_relaxed);
  const bool posted = Post([this, id, wait = std::move(wait)]() mutable {
    const absl::Time deadline = now_() + wait.timeout;
    waits_.emplace(id, PendingWait{std::move(wait), deadline});
    check_waits_at_ = absl::InfinitePast();
  });
  if (posted) return id;
  metrics_->waits.fetch_sub(1, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  --pending_waits_;
  return absl::UnavailableError("the server is shutting down");
}

void RegistryLoop::CancelWait(VersionWaitId wait) {
  Post([this, wait] {
    const auto found = waits_.find(wait);
    if (found == waits_.end()) return;
    found->second.deadline = absl::InfinitePast();
    check_waits_at_ = absl::InfinitePast();
  });
}

void RegistryLoop::Note(RegistryEvent event) {
  Post([this, event = std::move(event)] { Remember(event); });
}

void RegistryLoop::RefuseEverybody(absl::Status why, absl::Duration retry_after) {
  Post([this, refused = Refused{std::move(why), retry_after}] {
    if (refusing_.has_value()) return;
    refusing_ = refused;
    RefuseStreams(refused, /*also_silent=*/true);
    check_waits_at_ = absl::InfinitePast();
  });
}

void RegistryLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  if (pulse_thread_.joinable()) pulse_thread_.join();
}

bool RegistryLoop::Post(Event event) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  inbox_.push_back({now_(), std::move(event)});
  return true;
}

void RegistryLoop::Pulse() {
  absl::MutexLock lock(&pulse_mutex_);
  unforgiven_pause_ += pause_watch_.Pulse(now_());
}

void RegistryLoop::RunPulse() {
  // Signals belong to the process's own threads, also where the server is embedded in another's.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "th-pulse");
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pulse_interval_)) Pulse();
}

// ---------------------------------------------------------------------------------------------
// The loop's thread

void RegistryLoop::Run() {
  for (;;) {
    std::deque<QueuedEvent> events = TakeEvents(NextWake());
    ForgivePause();
    const bool idle = events.empty();
    Turn(std::move(events));
    absl::MutexLock lock(&mutex_);
    if (stopping_ && idle && inbox_.empty()) break;
  }
  // Nobody may be left waiting for an answer.
  if (!refusing_.has_value()) refusing_ = Refused{absl::UnavailableError("the server has stopped")};
  check_waits_at_ = absl::InfinitePast();
  Turn({});
}

std::deque<RegistryLoop::QueuedEvent> RegistryLoop::TakeEvents(absl::Time wake_at) {
  absl::MutexLock lock(&mutex_);
  const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !inbox_.empty();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&awake),
                          std::max(wake_at - now_(), absl::ZeroDuration()));
  const absl::Time now = now_();
  heard_until_.TakeInbox(now);
  std::deque<QueuedEvent> events;
  if (inbox_.size() <= kMaxTurnEvents) {
    events.swap(inbox_);
    return events;
  }
  const auto end = inbox_.begin() + kMaxTurnEvents;
  std::move(inbox_.begin(), end, std::back_inserter(events));
  inbox_.erase(inbox_.begin(), end);
  heard_until_.LeftInInbox(inbox_.front().at);
  return events;
}

void RegistryLoop::ForgivePause() {
  Pulse();
  absl::Duration pause;
  {
    absl::MutexLock lock(&pulse_mutex_);
    pause = std::exchange(unforgiven_pause_, absl::ZeroDuration());
  }
  if (pause == absl::ZeroDuration() || !failure_.ok()) return;
  LOG(WARNING) << "this server's process did not run for up to " << pause
               << "; leases and deadlines are prolonged by as much";
  metrics_->pauses.fetch_add(1, std::memory_order_relaxed);
  registry_->HandlePause(pause, now_());
  for (auto& [time, connection] : silent_) time += pause;
}

void RegistryLoop::Turn(std::deque<QueuedEvent> events) {
  for (QueuedEvent& queued : events) queued.event();
  Tick();
  CheckWaits();
  // Delivering may close streams, which may bring about more.
  do Commit();
  while (!outcome_.empty());
  AbortLateClosers();
  heard_until_.EndTurn(now_());
  for (const QueuedEvent& queued : events) metrics_->turn_seconds.Record(now_() - queued.at);
}

absl::Time RegistryLoop::NextWake() const {
  absl::Time wake = registry_->NextDeadline();
  if (!silent_.empty()) wake = std::min(wake, silent_.front().first);
  wake = std::min(std::max(wake, heard_until_.caught_up_at()), check_waits_at_);
  if (!closing_.empty()) wake = std::min(wake, closing_.front().first);
  if (!failure_.ok()) wake = absl::InfiniteFuture();
  return wake;
}

void RegistryLoop::Absorb(RegistryEffects effects) {
  if (effects.durable.has_value()) outcome_.durable = std::move(effects.durable);
  Append(outcome_.messages, effects.messages);
  Append(outcome_.close, effects.close);
  for (const RegistryEvent& event : effects.events) LOG(INFO) << event.LogLine();
  Append(outcome_.events, effects.events);
  if (!waits_.empty()) check_waits_at_ = std::min(check_waits_at_, now_() + kWaitCheckInterval);
}

void RegistryLoop::Remember(const RegistryEvent& event) {
  if (const RecentEvent* kept = events_.Add(event, now_())) on_event_(epoch(), *kept);
}

void RegistryLoop::Tick() {
  const absl::Time now = heard_until_.time();
  if (failure_.ok() && registry_->NextDeadline() <= now) Absorb(registry_->HandleTick(now));
  CloseSilentStreams();
}

void RegistryLoop::CloseSilentStreams() {
  const absl::Time now = heard_until_.time();
  for (; !silent_.empty() && silent_.front().first <= now; silent_.pop_front()) {
    const auto found = streams_.find(silent_.front().second);
    if (found == streams_.end() || !found->second.silent) continue;
    Refuse(found->first,
           absl::DeadlineExceededError(
               absl::StrCat("no message within ", absl::FormatDuration(first_message_timeout_))),
           absl::InfiniteDuration());
  }
}

void RegistryLoop::CheckWaits() {
  const absl::Time now = now_();
  if (check_waits_at_ > now) return;
  check_waits_at_ = absl::InfiniteFuture();
  for (auto it = waits_.begin(); it != waits_.end();) {
    std::optional<absl::StatusOr<VersionInfo>> result = ResultOf(it->second, now);
    if (!result.has_value()) {
      check_waits_at_ = std::min(check_waits_at_, it->second.deadline);
      ++it;
      continue;
    }
    // As an answer, so that no version is named before it is durable.
    outcome_.answers.push_back([done = std::move(it->second.wait.done),
                                result = *std::move(result)](const absl::Status& durable) mutable {
      done(durable.ok() ? std::move(result) : absl::StatusOr<VersionInfo>(durable));
    });
    it = waits_.erase(it);
    metrics_->waits.fetch_sub(1, std::memory_order_relaxed);
    absl::MutexLock lock(&mutex_);
    --pending_waits_;
  }
}

std::optional<absl::StatusOr<VersionInfo>> RegistryLoop::ResultOf(const PendingWait& pending,
                                                                  absl::Time now) const {
  if (refusing_.has_value()) return refusing_->status;
  const VersionWait& wait = pending.wait;
  absl::StatusOr<VersionInfo> found = registry_->Resolve(wait.key, wait.selector);
  if (found.ok() && found->sequence > wait.after) return found;
  if (pending.deadline > now) return std::nullopt;
  return absl::DeadlineExceededError(absl::StrCat("no version ", ToString(wait.selector), " of ",
                                                  wait.key.ToString(), " within ",
                                                  absl::FormatDuration(wait.timeout)));
}

void RegistryLoop::Commit() {
  Outcome outcome = std::exchange(outcome_, {});
  if (outcome.durable.has_value() && failure_.ok()) {
    const absl::Time begin = now_();
    const absl::Status written = store_->Write(*outcome.durable);
    metrics_->durable_write_seconds.Record(now_() - begin);
    metrics_->durable_writes.fetch_add(1, std::memory_order_relaxed);
    if (!written.ok()) {
      // Messages leave only once what they say is durable.
      outcome.messages.clear();
      outcome.close.clear();
      outcome.events.clear();
      Fail(written);
    }
  }
  Deliver(std::move(outcome));
}

void RegistryLoop::Deliver(Outcome outcome) {
  for (const RegistryEvent& event : outcome.events) Remember(event);
  for (const OutgoingMessage& out : outcome.messages) SendTo(out.connection, out.message);
  for (const ConnectionId connection : outcome.close) CloseAfterSending(connection);
  for (Answer& answer : outcome.answers) answer(failure_);
  for (const ConnectionId connection : outcome.read_next) {
    const auto found = streams_.find(connection);
    if (found != streams_.end()) found->second.peer->ReadNext();
  }
}

void RegistryLoop::Fail(absl::Status why) {
  failure_ = absl::UnavailableError(
      absl::StrCat("the server cannot keep its state and is stopping: ", why.message()));
  LOG(ERROR) << failure_.message();
  refusing_ = Refused{failure_, absl::Seconds(1)};
  std::vector<ConnectionId> everybody;
  for (const auto& [connection, stream] : streams_) everybody.push_back(connection);
  for (const ConnectionId connection : everybody) {
    SendTo(connection, *refusing_);
    CloseAfterSending(connection);
  }
  on_failure_(std::move(why));
}

void RegistryLoop::OnOpen(ConnectionId connection, std::shared_ptr<StreamPeer> peer) {
  streams_[connection] = {std::move(peer)};
  silent_.emplace_back(now_() + first_message_timeout_, connection);
  ++silent_streams_;
  if (refusing_.has_value()) {
    Refuse(connection, refusing_->status, refusing_->retry_after);
  } else if (silent_streams_ > kMaxSilentStreams) {
    Refuse(connection, absl::ResourceExhaustedError("too many streams without a join"),
           absl::Seconds(1));
  }
}

void RegistryLoop::OnMessage(ConnectionId connection, const WorkerMessage& message) {
  if (!Listens(connection) || refusing_.has_value()) return;
  if (std::exchange(streams_[connection].silent, false)) --silent_streams_;
  RegistryEffects effects = registry_->HandleMessage(connection, message, now_());
  const std::optional<Epoch> outdone_by = effects.outdone_by;
  Absorb(std::move(effects));
  outcome_.read_next.push_back(connection);
  if (outdone_by.has_value()) BeginAbove(*outdone_by);
}

void RegistryLoop::BeginAbove(Epoch heard) {
  if (!failure_.ok()) return;
  outcome_.durable.reset();  // it is a part of what is written now
  const absl::Status begun = store_->BeginAbove(heard, registry_->durable());
  metrics_->durable_writes.fetch_add(1, std::memory_order_relaxed);
  if (!begun.ok()) {
    outcome_.messages.clear();  // what is not durable was never said
    outcome_.close.clear();
    outcome_.events.clear();
    return Fail(begun);
  }
  epoch_ = store_->opened().epoch.value;
  LOG(WARNING) << "a worker has lived in epoch " << heard << ", and this server's state knows "
               << "nothing of it: the state was lost or is older. The server goes on in epoch "
               << epoch() << ", and its workers tell it again what they hold";
  RefuseStreams({.status = absl::UnavailableError("the server begins again in a higher epoch"),
                 .retry_after = kRetryBegunAgain},
                /*also_silent=*/false);
  registry_ = std::make_unique<Registry>(StartOf(store_->opened(), now_()), limits_);
  check_waits_at_ = absl::InfinitePast();
}

void RegistryLoop::OnDisconnect(ConnectionId connection) {
  if (!Listens(connection)) return;
  if (failure_.ok()) Absorb(registry_->HandleDisconnect(connection, now_()));
  streams_[connection].ending = true;
  outcome_.close.push_back(connection);
}

bool RegistryLoop::Listens(ConnectionId connection) const {
  const auto found = streams_.find(connection);
  return found != streams_.end() && !found->second.ending;
}

void RegistryLoop::OnQuestion(Question& question) {
  {
    absl::MutexLock lock(&mutex_);
    --pending_questions_;
  }
  RegistryTurn turn{
      .registry = *registry_, .events = events_, .form_claims = form_claims_, .now = now_()};
  turn.run_command = [this, &turn](const ModelKey& key, const RunCommand& command) {
    if (!failure_.ok()) return CommandFinished{.status = failure_};
    Registry::CommandResult result = registry_->HandleCommand(key, command, turn.asked_by, now_());
    Absorb(std::move(result.effects));
    return std::move(result.finished);
  };
  outcome_.answers.push_back(question(turn));
}

void RegistryLoop::RefuseStreams(const Refused& refused, bool also_silent) {
  const absl::flat_hash_set<ConnectionId> closing(outcome_.close.begin(), outcome_.close.end());
  std::vector<ConnectionId> refused_ones;
  for (const auto& [connection, stream] : streams_) {
    const bool open = !stream.ending && !closing.contains(connection);
    if (open && (also_silent || !stream.silent)) refused_ones.push_back(connection);
  }
  std::sort(refused_ones.begin(), refused_ones.end());
  for (const ConnectionId connection : refused_ones) {
    Refuse(connection, refused.status, refused.retry_after);
  }
}

void RegistryLoop::Refuse(ConnectionId connection, absl::Status why, absl::Duration retry_after) {
  streams_[connection].ending = true;
  outcome_.messages.push_back(
      {connection,
       Refused{.status = std::move(why), .retry_after = retry_after, .epoch = epoch()}});
  outcome_.close.push_back(connection);
}

void RegistryLoop::SendTo(ConnectionId connection, const ServerMessage& message) {
  const auto found = streams_.find(connection);
  if (found == streams_.end() || found->second.peer->Send(message)) return;
  LOG(WARNING) << "stream " << connection << " does not read what it is sent; closing it";
  if (failure_.ok()) Absorb(registry_->HandleDisconnect(connection, now_()));
  CloseAfterSending(connection);
}

void RegistryLoop::CloseAfterSending(ConnectionId connection) {
  const auto found = streams_.find(connection);
  if (found == streams_.end()) return;
  std::shared_ptr<StreamPeer> peer = std::move(found->second.peer);
  if (found->second.silent) --silent_streams_;
  streams_.erase(found);
  peer->CloseAfterSending();
  closing_.emplace_back(now_() + close_grace_, std::move(peer));
}

void RegistryLoop::AbortLateClosers() {
  const absl::Time now = now_();
  while (!closing_.empty() && closing_.front().first <= now) {
    closing_.front().second->Abort();
    closing_.pop_front();
  }
}

}  // namespace th
