#include "th/worker_session/session_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

// Steps at one moment of the virtual clock before the world counts as spinning.
constexpr int kMaxStepsAtOnce = 200'000;

}  // namespace

void PrintTo(const OperationDone& done, std::ostream* os) {
  *os << "call " << done.call << " outcome " << static_cast<int>(done.outcome) << ", reason "
      << static_cast<int>(done.not_available) << ", " << done.status;
}

World::World(RegistryLimits limits) : limits_(limits) { StartServer(); }

World::~World() = default;

uint64_t World::Truth(const std::string& label, int layout, uint64_t segment) {
  const std::string text = absl::StrCat(label, "/", layout, "/", segment);
  return SumBytes(text.data(), text.size());
}

// ---- people

WorldNode* World::JoinRank(const RankName& name, uint32_t ranks) {
  return JoinRank(name, ranks, static_cast<int>(name.rank.value));
}

WorldNode* World::JoinRank(const RankName& name, uint32_t ranks, int layout) {
  SessionOptions options;
  options.key = {"r1", "qwen3"};
  options.name = name;
  options.ranks = ranks;
  options.endpoints = {{absl::StrCat("node", nodes_.size(), ":1")}};
  nodes_.push_back(std::make_unique<WorldNode>(this, options, layout));
  WorldNode* node = nodes_.back().get();
  node->Start();
  EXPECT_TRUE(RunUntil([&] { return node->session.joined() || node->ended.has_value(); }));
  Run(4 * kWorldLatency);  // registration and layout
  return node;
}

std::vector<WorldNode*> World::JoinGroup(const std::string& group, uint32_t ranks) {
  std::vector<WorldNode*> nodes;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    nodes.push_back(JoinRank({group, Rank(rank)}, ranks));
  }
  return nodes;
}

std::vector<OperationDone> World::Await(const std::vector<WorldNode*>& ranks,
                                        const std::vector<CallId>& calls) {
  EXPECT_TRUE(RunUntil([&] {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!ranks[i]->done.contains(calls[i])) return false;
    }
    return true;
  })) << "an operation has no end";
  std::vector<OperationDone> done;
  for (size_t i = 0; i < ranks.size(); ++i) done.push_back(ranks[i]->done[calls[i]]);
  return done;
}

std::vector<OperationDone> World::PublishAll(const std::vector<WorldNode*>& ranks,
                                             const std::string& label) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (WorldNode* rank : ranks) calls.push_back(rank->Publish(label));
  return Await(ranks, calls);
}

std::vector<OperationDone> World::UpdateAll(const std::vector<WorldNode*>& ranks,
                                            const VersionSelector& selector) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (WorldNode* rank : ranks) calls.push_back(rank->Update(selector));
  return Await(ranks, calls);
}

std::vector<OperationDone> World::UnpublishAll(const std::vector<WorldNode*>& ranks) {
  std::vector<CallId> calls;
  calls.reserve(ranks.size());
  for (WorldNode* rank : ranks) calls.push_back(rank->Unpublish());
  return Await(ranks, calls);
}

CommandFinished World::RunCommandOf(WorldNode* node, const RunCommand& command) {
  const CallId call = node->Command(command);
  EXPECT_TRUE(RunUntil([&] { return node->commands.contains(call); }));
  return node->commands[call];
}

// ---- mishaps

void World::Kill(WorldNode* node) {
  node->alive = false;
  node->BreakTransfers();
  CloseStream(node);
}

void World::Stop(WorldNode* node) { node->stopped = true; }

void World::Continue(WorldNode* node) {
  node->stopped = false;
  for (auto& event : std::exchange(node->backlog, {})) {
    PostTo(node, absl::ZeroDuration(), std::move(event));
  }
}

void World::BreakStream(WorldNode* node) {
  if (!node->stream.has_value()) return;
  CloseStream(node);
  node->session.HandleStreamClosed(absl::UnavailableError("broken by the test"), now_);
  node->Drain();
}

void World::KillServer() {
  registry_.reset();
  for (auto& [connection, node] : std::exchange(streams_, {})) {
    WorldNode* worker = node;
    PostTo(worker, kWorldLatency, [worker, connection = connection, this] {
      if (worker->stream != connection) return;
      worker->stream.reset();
      worker->session.HandleStreamClosed(absl::UnavailableError("the server is gone"), now_);
      worker->Drain();
    });
  }
}

void World::StartServer() {
  epoch_ = epoch_.Next();
  RegistryStart start;
  start.epoch = epoch_;
  start.durable = durable_;
  start.recovering = epoch_.value > 1;
  start.now = now_;
  start.key_seed[0] = epoch_.value;
  registry_ = std::make_unique<Registry>(start, limits_);
}

// ---- time

void World::Run(absl::Duration duration) {
  const absl::Time until = now_ + duration;
  RunUntil([&] { return false; }, duration);
  now_ = until;
}

bool World::RunUntil(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time until = now_ + limit;
  int at_once = 0;
  while (!condition()) {
    const absl::Time next = NextEvent();
    if (next > until) return false;
    at_once = next <= now_ ? at_once + 1 : 0;
    if (at_once > kMaxStepsAtOnce) {
      ADD_FAILURE() << "the world spins";
      return false;
    }
    now_ = std::max(now_, next);
    Step();
  }
  return true;
}

absl::Time World::NextEvent() const {
  absl::Time next = queue_.empty() ? absl::InfiniteFuture() : queue_.begin()->first.first;
  if (registry_ != nullptr) next = std::min(next, registry_->NextDeadline());
  for (const auto& node : nodes_) {
    if (node->alive && !node->stopped) next = std::min(next, node->session.NextDeadline());
  }
  return next;
}

void World::Step() {
  if (!queue_.empty() && queue_.begin()->first.first <= now_) {
    const std::function<void()> event = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    return event();
  }
  if (registry_ != nullptr && registry_->NextDeadline() <= now_) {
    return RunServer([&](Registry& registry) { return registry.HandleTick(now_); });
  }
  for (const auto& node : nodes_) {
    if (!node->alive || node->stopped || node->session.NextDeadline() > now_) continue;
    node->session.HandleTick(now_);
    return node->Drain();
  }
}

void World::Post(absl::Duration delay, std::function<void()> event) {
  queue_.emplace(std::pair(now_ + delay, ++events_), std::move(event));
}

void World::PostTo(WorldNode* node, absl::Duration delay, std::function<void()> event) {
  Post(delay, [node, event = std::move(event)] {
    if (!node->alive) return;
    if (node->stopped) {
      node->backlog.push_back(event);
    } else {
      event();
    }
  });
}

// ---- streams

void World::OpenStream(WorldNode* node) {
  node->opening = true;
  PostTo(node, 2 * kWorldLatency, [this, node] {
    if (!std::exchange(node->opening, false)) return;
    if (registry_ == nullptr) {
      node->session.HandleStreamClosed(absl::UnavailableError("connection refused"), now_);
    } else {
      node->stream = ConnectionId(++connections_);
      streams_[*node->stream] = node;
      node->session.HandleStreamOpen(now_);
    }
    node->Drain();
  });
}

void World::CloseStream(WorldNode* node) {
  node->opening = false;
  if (!node->stream.has_value()) return;
  const ConnectionId connection = *std::exchange(node->stream, std::nullopt);
  streams_.erase(connection);
  Post(kWorldLatency, [this, connection] { Disconnected(connection); });
}

void World::Disconnected(ConnectionId connection) {
  RunServer([&](Registry& registry) { return registry.HandleDisconnect(connection, now_); });
}

void World::ToServer(WorldNode* node, WorkerMessage message) {
  if (!node->stream.has_value()) return;
  const ConnectionId connection = *node->stream;
  const Epoch epoch = epoch_;
  Post(kWorldLatency, [this, connection, epoch, message = std::move(message)] {
    if (epoch != epoch_) return;  // the stream ended with its server
    RunServer(
        [&](Registry& registry) { return registry.HandleMessage(connection, message, now_); });
  });
}

void World::RunServer(const std::function<RegistryEffects(Registry&)>& event) {
  if (registry_ == nullptr) return;
  Take(event(*registry_));
  ASSERT_OK(registry_->CheckInvariants());
}

void World::Take(RegistryEffects effects) {
  if (effects.durable.has_value()) durable_ = *effects.durable;
  for (OutgoingMessage& out : effects.messages) {
    const auto stream = streams_.find(out.connection);
    if (stream == streams_.end()) continue;
    WorldNode* node = stream->second;
    PostTo(node, kWorldLatency,
           [this, node, connection = out.connection, message = std::move(out.message)] {
             if (node->stream != connection) return;
             node->session.HandleServerMessage(message, now_);
             node->Drain();
           });
  }
  for (ConnectionId connection : effects.close) {
    const auto stream = streams_.find(connection);
    if (stream == streams_.end()) continue;
    WorldNode* node = stream->second;
    streams_.erase(stream);
    PostTo(node, kWorldLatency, [this, node, connection] {
      if (node->stream != connection) return;
      node->stream.reset();
      node->session.HandleStreamClosed(absl::UnavailableError("closed by the server"), now_);
      node->Drain();
    });
  }
}

WorldNode* World::FindWorker(WorkerId worker) {
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    if ((*node)->session.worker() == worker) return node->get();
  }
  return nullptr;
}

}  // namespace th
