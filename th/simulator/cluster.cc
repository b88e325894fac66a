#include "th/simulator/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

// Events at one moment of the virtual clock before the cluster counts as spinning.
constexpr int kMaxStepsAtOnce = 200'000;
constexpr uint64_t kStopping = 0x73746f70;  // parts its numbers from those of the jitter

}  // namespace

Cluster::Cluster(ClusterSpec spec)
    : spec_(std::move(spec)),
      fabric_(spec_.fabric, &network_),
      jitter_(spec_.seed),
      stopping_(SeededRandom(spec_.seed ^ kStopping).Fork()) {
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
  const size_t slot = on_their_way_.Put({&from, to, std::move(event)});
  queue_.PostAt(wire->last_arrival, [this, slot] { Arrive(on_their_way_.Take(slot)); });
}

void Cluster::Arrive(Message message) {
  if (!fabric_.Connected(message.from->location(), message.to->location())) {
    undelivered_.push_back(std::move(message));
    return;
  }
  ++deliveries_;
  message.to->RunOrHold(std::move(message.event));
}

void Cluster::HealHost(const std::string& host) {
  fabric_.Heal(host, now());
  for (Message& message : std::exchange(undelivered_, {})) Arrive(std::move(message));
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

void Cluster::Step(absl::Time delivery) {
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
    const absl::Time delivery = network_.NextDelivery(now());
    const absl::Time next = std::min(queue_.next(), delivery);  // infinite: nothing happens again
    if (next > until) {
      queue_.AdvanceTo(until);
      return condition();
    }
    steps = next == moment ? steps + 1 : 0;
    moment = next;
    if (steps > kMaxStepsAtOnce) {
      checker_.Violated("the cluster spins without time passing");
      return false;
    }
    Step(delivery);
  }
  return true;
}

void Cluster::Run(absl::Duration duration) {
  RunUntil([] { return false; }, duration);
}

absl::Duration Cluster::DrawStoppingTime() {
  const bool at_once = spec_.stopping_time == absl::ZeroDuration() || stopping_.OneIn(2);
  return at_once ? absl::ZeroDuration()
                 : stopping_.Between(absl::ZeroDuration(), spec_.stopping_time);
}

}  // namespace th
