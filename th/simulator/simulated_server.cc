#include "th/simulator/simulated_server.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// How long a worker takes to find out that nobody listens.
constexpr absl::Duration kRefusedAfter = absl::Milliseconds(2);

ReplicaObserver::Rank RankOf(const SimulatedWorker& worker) {
  return {&worker.spec().key, &worker.spec().name, worker.spec().ranks, kSimulatedBufferName,
          worker.buffer_id()};
}

Location ServerLocation(const std::string& site) {
  Location location;
  location.host = "server";
  location.site = site;
  return location;
}

}  // namespace

ServerDisk EmptyDisk(ClusterId cluster) {
  ServerDisk disk;
  disk.identity.cluster = cluster;
  disk.identity.key.bytes.front() = static_cast<uint8_t>(cluster.value);
  return disk;
}

SimulatedServer::SimulatedServer(Cluster* cluster)
    : SimulatedProcess(cluster->queue(), ServerLocation(cluster->spec().server_site)),
      cluster_(cluster),
      observer_(cluster->spec().coverage),
      watch_(cluster) {
  Start();
}

void SimulatedServer::Start() {
  SetAlive(true);
  disk_.identity.of_this_process = 0;
  BeginEpoch(disk_.epoch);
}

void SimulatedServer::ReplaceDisk(ServerDisk disk, Epoch passed) {
  watch_.LostWhatIsNotIn(disk.identity, disk_.durable);
  ++disks_;
  disk_ = std::move(disk);
  disk_.epoch = std::max(disk_.epoch, passed);
}

void SimulatedServer::BeginEpoch(Epoch above) {
  const bool ran_before = !disk_.identity.epoch_ids.empty();
  disk_.epoch = above.Next();
  disk_.identity.epoch_ids.emplace_back(++epochs_begun_);
  disk_of_epoch_[disk_.identity.epoch_id()] = disks_;
  ++disk_.identity.of_this_process;
  cluster_->Trace([&] { return absl::StrCat("server: starts epoch ", disk_.epoch.value); });
  RegistryStart start;
  start.epoch = disk_.epoch;
  start.identity = disk_.identity;
  start.durable = disk_.durable;
  start.recovering = ran_before;
  start.now = now();
  start.key_seed[0] = epochs_begun_;
  watch_.Began();
  CheckRegistry();
  registry_ = std::make_unique<Registry>(start, cluster_->spec().registry);
  WakeAt(registry_->NextDeadline());
}

void SimulatedServer::Kill() {
  CheckRegistry();
  SetAlive(false);
  in_long_turn_ = false;
  registry_.reset();
  for (auto& [connection, stream] : streams_) {
    SimulatedWorker* worker = stream.worker;
    cluster_->Carry(*this, worker, &stream.down, [worker, connection = connection] {
      worker->HandleStreamClosed(connection, absl::UnavailableError("the server is gone"));
    });
  }
  streams_.clear();
}

void SimulatedServer::Stop() {
  if (stopped()) return;
  stopped_at_ = now();
  SetStopped(true);
}

void SimulatedServer::Continue() {
  if (!stopped()) return;
  SetStopped(false);
  if (!std::exchange(in_long_turn_, false)) registry_->HandlePause(now() - stopped_at_, now());
}

void SimulatedServer::BeginLongTurn() {
  if (!alive() || stopped()) return;
  in_long_turn_ = true;
  SetStopped(true);
}

void SimulatedServer::EndLongTurn() {
  if (in_long_turn_) Continue();
}

CommandFinished SimulatedServer::Command(const ModelKey& key, const RunCommand& command) {
  CommandFinished finished{.status = absl::UnavailableError("the server does not run")};
  if (!alive() || stopped()) return finished;
  RunRegistry([&](Registry& registry) {
    Registry::CommandResult result = registry.HandleCommand(key, command, "controller", now());
    finished = std::move(result.finished);
    return std::move(result.effects);
  });
  return finished;
}

Catalog SimulatedServer::List() const {
  return registry_ == nullptr ? Catalog{} : registry_->List("", "", now());
}

bool SimulatedServer::Hears(const SimulatedWorker& worker) const {
  return alive() && !stopped() && !worker.stopped() && worker.session().joined() &&
         cluster_->Connected(worker, *this);
}

// ---- streams

ConnectionId SimulatedServer::Connect(SimulatedWorker* worker) {
  const ConnectionId connection(++connections_);
  if (!alive()) {
    worker->Post(kRefusedAfter, [worker, connection] {
      worker->HandleStreamClosed(connection, absl::UnavailableError("connection refused"));
    });
    return connection;
  }
  Stream& stream = streams_.emplace(connection, Stream{worker, {}, {}}).first->second;
  // The machine accepts, whether the process runs or not.
  cluster_->Carry(*this, worker, &stream.down,
                  [worker, connection] { worker->HandleStreamOpen(connection); });
  return connection;
}

void SimulatedServer::Disconnect(const SimulatedWorker& worker, ConnectionId connection) {
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  cluster_->Carry(worker, this, &stream->second.up, [this, connection] {
    if (streams_.erase(connection) == 0) return;
    RunRegistry([&](Registry& registry) { return registry.HandleDisconnect(connection, now()); });
  });
}

void SimulatedServer::Send(SimulatedWorker* worker, ConnectionId connection,
                           WorkerMessage message) {
  const auto stream = streams_.find(connection);
  if (stream == streams_.end()) return;
  cluster_->Carry(*worker, this, &stream->second.up,
                  [this, connection, message = std::move(message)] {
                    const auto from = streams_.find(connection);
                    if (from == streams_.end()) return;
                    RunRegistry([&](Registry& registry) {
                      return Hear(registry, *from->second.worker, message, connection);
                    });
                  });
}

RegistryEffects SimulatedServer::Hear(Registry& registry, const SimulatedWorker& from,
                                      const WorkerMessage& message, ConnectionId connection) {
  const RegistryCounters before = registry.counters();
  RegistryEffects effects = observer_.Watch(
      registry, [&from] { return RankOf(from); }, message,
      [&] { return registry.HandleMessage(connection, message, now()); });
  watch_.Heard(from, message,
               {.refused = registry.counters().messages_refused > before.messages_refused,
                .source_failed = registry.counters().sources_failed > before.sources_failed});
  return effects;
}

// ---- the registry

void SimulatedServer::RunRegistry(absl::FunctionRef<RegistryEffects(Registry&)> event) {
  CarryOut(event(*registry_));
  if (++registry_events_ % cluster_->spec().check_registry_every == 0) CheckRegistry();
  WakeAt(registry_->NextDeadline());
}

void SimulatedServer::CheckRegistry() {
  if (registry_ == nullptr) return;
  const absl::Status kept = registry_->CheckInvariants();
  if (!kept.ok()) cluster_->checker().Violated(std::string(kept.message()));
}

void SimulatedServer::CarryOut(RegistryEffects effects) {
  if (effects.durable.has_value()) disk_.durable = *std::move(effects.durable);
  for (const RegistryEvent& event : effects.events) {
    cluster_->Trace([&] { return absl::StrCat("server: ", event.LogLine()); });
  }
  for (OutgoingMessage& out : effects.messages) {
    const auto stream = streams_.find(out.connection);
    if (stream == streams_.end()) continue;
    SimulatedWorker* worker = stream->second.worker;
    watch_.Said(*worker, out.message, disk_.durable);
    cluster_->Carry(*this, worker, &stream->second.down,
                    [worker, connection = out.connection, message = std::move(out.message)] {
                      worker->HandleServerMessage(connection, message);
                    });
  }
  for (ConnectionId connection : effects.close) {
    const auto stream = streams_.find(connection);
    if (stream == streams_.end()) continue;
    SimulatedWorker* worker = stream->second.worker;
    cluster_->Carry(*this, worker, &stream->second.down, [worker, connection] {
      worker->HandleStreamClosed(connection, absl::UnavailableError("closed by the server"));
    });
    streams_.erase(stream);
  }
  if (effects.outdone_by.has_value()) BeginAbove(*effects.outdone_by);
}

void SimulatedServer::BeginAbove(Epoch heard) {
  for (auto& [connection, stream] : streams_) {
    SimulatedWorker* worker = stream.worker;
    cluster_->Carry(
        *this, worker, &stream.down, [worker, connection = connection, epoch = disk_.epoch] {
          const absl::Status why =
              absl::UnavailableError("the server begins again in a higher epoch");
          worker->HandleServerMessage(
              connection, Refused{.status = why, .retry_after = kRetryBegunAgain, .epoch = epoch});
          worker->HandleStreamClosed(connection, why);
        });
  }
  streams_.clear();
  BeginEpoch(std::max(disk_.epoch, heard));
}

void SimulatedServer::HandleWake() {
  if (now() < registry_->NextDeadline()) return WakeAt(registry_->NextDeadline());
  const auto group_of = [this](ConnectionId connection) {
    const auto stream = streams_.find(connection);
    return stream == streams_.end() ? "" : stream->second.worker->spec().name.group;
  };
  RunRegistry([&](Registry& registry) {
    return observer_.WatchTick(registry, group_of, [&] { return registry.HandleTick(now()); });
  });
}

}  // namespace th
