#include "th/simulator/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

// Events at one moment of the virtual clock before the cluster counts as spinning.
constexpr int kMaxStepsAtOnce = 200'000;

}  // namespace

Cluster::Cluster(ClusterSpec spec)
    : spec_(std::move(spec)), fabric_(spec_.fabric, &network_), jitter_(spec_.seed) {
  server_ = std::make_unique<SimulatedServer>(this);
}

Cluster::~Cluster() = default;

SimulatedWorker* Cluster::Start(WorkerSpec spec) {
  std::vector<std::string> addresses;
  for (int endpoint = 1; endpoint <= spec_.endpoints; ++endpoint) {
    addresses.push_back(absl::StrCat("w", workers_.size(), ":", endpoint));
  }
  workers_.push_back(
      std::make_unique<SimulatedWorker>(this, std::move(spec), std::move(addresses)));
  workers_.back()->Begin();
  return workers_.back().get();
}

SimulatedWorker* Cluster::FindWorker(const std::string& address) const {
  const size_t index = std::stoul(address.substr(1));  // "w12:1", given by Start
  return workers_[index].get();
}

std::shared_ptr<const ShardLayout> Cluster::LayoutOf(int shard) {
  std::shared_ptr<const ShardLayout>& layout = layouts_[shard];
  if (layout == nullptr) layout = SimulatedLayout(shard, spec_.segment_count, spec_.segment_bytes);
  return layout;
}

void Cluster::Trace(absl::FunctionRef<std::string()> what) {
  if (spec_.trace != nullptr) spec_.trace(absl::StrCat(queue_.Stamp(), ": ", what()));
}

// ---- the network

void Cluster::Carry(const SimulatedProcess& from, SimulatedProcess* to, Wire* wire,
                    SimulatedEvent event) {
  absl::Time arrival = now() + fabric_.Latency(from.location(), to->location());
  if (spec_.jitter > absl::ZeroDuration()) {
    arrival += jitter_.Between(absl::ZeroDuration(), spec_.jitter);
  }
  wire->last_arrival = std::max(wire->last_arrival, arrival);
  queue_.PostAt(wire->last_arrival, [this, &from, to, event = std::move(event)]() mutable {
    Arrive(from, to, std::move(event));
  });
}

void Cluster::Arrive(const SimulatedProcess& from, SimulatedProcess* to, SimulatedEvent event) {
  if (!fabric_.Connected(from.location(), to->location())) {
    undelivered_.push_back({&from, to, std::move(event)});
    return;
  }
  ++deliveries_;
  to->RunOrHold(std::move(event));
}

void Cluster::HealHost(const std::string& host) {
  fabric_.Heal(host, now());
  for (Undelivered& message : std::exchange(undelivered_, {})) {
    Arrive(*message.from, message.to, std::move(message.event));
  }
}

FlowId Cluster::OpenFlow(SimulatedWorker* source, const SimulatedWorker& reader,
                         TransferId transfer) {
  const FlowId flow = network_.AddFlow(fabric_.Route(source->location(), reader.location()));
  flows_[flow] = {source, transfer};
  return flow;
}

void Cluster::CloseFlow(FlowId flow) {
  network_.RemoveFlow(flow, now());
  flows_.erase(flow);
}

// ---- time

absl::Time Cluster::NextMoment() { return std::min(queue_.next(), network_.NextDelivery(now())); }

void Cluster::Step() {
  const absl::Time delivery = network_.NextDelivery(now());
  if (queue_.next() <= delivery) return queue_.RunNext();
  queue_.AdvanceTo(delivery);
  for (FlowId flow : network_.TakeDelivered(now())) {
    const auto owner = flows_.find(flow);
    if (owner == flows_.end()) continue;  // closed by one that was delivered just before
    owner->second.source->HandleChunkDelivered(owner->second.transfer);
  }
}

bool Cluster::RunUntil(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time until = now() + limit;
  absl::Time moment = absl::InfinitePast();
  int steps = 0;
  while (!condition()) {
    const absl::Time next = NextMoment();
    if (next > until) {
      queue_.AdvanceTo(until);
      return condition();
    }
    steps = next == moment ? steps + 1 : 0;
    moment = next;
    if (steps > kMaxStepsAtOnce) {
      judge_.Violated("the cluster spins without time passing");
      return false;
    }
    Step();
  }
  return true;
}

void Cluster::Run(absl::Duration duration) {
  RunUntil([] { return false; }, duration);
}

}  // namespace th
