#include "th/simulator/flow_network.h"

#include <algorithm>
#include <limits>

namespace th {

LinkId FlowNetwork::AddLink(std::string name, double rate) {
  links_.push_back({.name = std::move(name), .rate = rate});
  return LinkId(static_cast<uint32_t>(links_.size() - 1));
}

void FlowNetwork::SetRate(LinkId link, double rate, absl::Time now) {
  Settle(now);
  links_[link.value].rate = rate;
  Change(link);
}

FlowId FlowNetwork::AddFlow(std::vector<LinkId> route) {
  const FlowId id(++flows_made_);
  auto flow = std::make_unique<Flow>();
  flow->id = id;
  flow->route = std::move(route);
  flows_.emplace(id, std::move(flow));
  return id;
}

void FlowNetwork::RemoveFlow(FlowId id, absl::Time now) {
  Settle(now);
  Flow* const flow = Find(id);
  if (flow == nullptr) return;
  ends_.erase({flow->end, id});
  SetSharing(*flow, false);
  flows_.erase(id);
}

FlowNetwork::Flow* FlowNetwork::Find(FlowId id) const {
  const auto found = flows_.find(id);
  return found == flows_.end() ? nullptr : found->second.get();
}

void FlowNetwork::Send(FlowId id, uint64_t bytes, absl::Time now) {
  Flow& flow = *flows_.at(id);
  flow.sending = true;
  flow.chunk = bytes;
  flow.remaining = static_cast<double>(bytes);
  flow.since = now;
  Toggle(flow);
  SetEnd(flow);
}

bool FlowNetwork::sending(FlowId id) const {
  const Flow* const flow = Find(id);
  return flow != nullptr && flow->sending;
}

double FlowNetwork::FlowRate(FlowId id, absl::Time now) {
  Settle(now);
  const Flow* const flow = Find(id);
  return flow == nullptr || !flow->sending ? 0 : flow->rate;
}

absl::Time FlowNetwork::NextDelivery(absl::Time now) {
  Settle(now);
  return ends_.empty() ? absl::InfiniteFuture() : ends_.begin()->first;
}

std::vector<FlowId> FlowNetwork::TakeDelivered(absl::Time now) {
  Settle(now);
  std::vector<FlowId> delivered;
  while (!ends_.empty() && ends_.begin()->first <= now) {
    const FlowId id = ends_.begin()->second;
    ends_.erase(ends_.begin());
    Flow& flow = *flows_.at(id);
    flow.sending = false;
    flow.end = absl::InfiniteFuture();
    Toggle(flow);
    for (LinkId link : flow.route) links_[link.value].bytes += flow.chunk;
    delivered.push_back(id);
  }
  return delivered;
}

void FlowNetwork::SetEnd(Flow& flow) {
  absl::Time end = absl::InfiniteFuture();
  if (flow.sending && flow.route.empty()) {
    end = flow.since;
  } else if (flow.sending && flow.rate > 0) {
    end = flow.since + absl::Seconds(flow.remaining / flow.rate);
  }
  if (end == flow.end) return;
  if (flow.end < absl::InfiniteFuture()) ends_.erase({flow.end, flow.id});
  flow.end = end;
  if (end < absl::InfiniteFuture()) ends_.insert({end, flow.id});
}

void FlowNetwork::Toggle(Flow& flow) {
  if (!std::exchange(flow.toggled, true)) toggled_.push_back(&flow);
}

void FlowNetwork::Change(LinkId link) {
  if (!std::exchange(links_[link.value].changed, true)) changed_.push_back(link);
}

void FlowNetwork::SetSharing(Flow& flow, bool sharing) {
  if (flow.sharing == sharing) return;
  flow.sharing = sharing;
  if (!sharing) flow.rate = 0;
  for (LinkId link : flow.route) {
    Change(link);
    std::vector<Flow*>& flows = links_[link.value].flows;
    const auto place = std::lower_bound(flows.begin(), flows.end(), &flow,
                                        [](const Flow* a, const Flow* b) { return a->id < b->id; });
    if (sharing) {
      flows.insert(place, &flow);
    } else {
      flows.erase(place);
    }
  }
}

void FlowNetwork::Settle(absl::Time now) {
  for (Flow* flow : toggled_) {
    flow->toggled = false;
    SetSharing(*flow, flow->sending);
  }
  toggled_.clear();
  if (changed_.empty()) return;
  ShareFairly(TouchFlows(), now);
  for (LinkId link : changed_) links_[link.value].changed = false;
  changed_.clear();
}

size_t FlowNetwork::TouchFlows() {
  ++rounds_;
  size_t flows = 0;
  for (size_t next = 0; next < changed_.size(); ++next) {
    for (Flow* flow : links_[changed_[next].value].flows) {
      if (std::exchange(flow->touched, rounds_) == rounds_) continue;
      ++flows;
      flow->left = true;
      for (LinkId crossed : flow->route) Change(crossed);
    }
  }
  return flows;
}

void FlowNetwork::GiveRate(Flow& flow, double rate, absl::Time now) {
  flow.remaining =
      std::max(0.0, flow.remaining - flow.rate * absl::ToDoubleSeconds(now - flow.since));
  flow.since = now;
  flow.rate = rate;
  SetEnd(flow);
}

// The narrowest link of changed_, which is in the order of the links' ids.
FlowNetwork::Link* FlowNetwork::FindNarrowest() {
  Link* narrowest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (LinkId id : changed_) {
    Link& link = links_[id.value];
    if (link.unshared_flows == 0) continue;
    const double share =
        std::max(link.unshared_rate, 0.0) / static_cast<double>(link.unshared_flows);
    if (share < least) {
      least = share;
      narrowest = &link;
    }
  }
  return narrowest;
}

// Progressive filling: time and again the link that leaves its flows the least gives them their
// rates, which all other links that they cross have to give too.
void FlowNetwork::ShareFairly(size_t flows, absl::Time now) {
  std::sort(changed_.begin(), changed_.end());
  for (LinkId id : changed_) {
    Link& link = links_[id.value];
    link.unshared_rate = link.rate;
    link.unshared_flows = link.flows.size();
  }
  while (flows > 0) {
    const Link& narrowest = *FindNarrowest();
    const double share =
        std::max(narrowest.unshared_rate, 0.0) / static_cast<double>(narrowest.unshared_flows);
    for (Flow* flow : narrowest.flows) {
      if (!std::exchange(flow->left, false)) continue;
      --flows;
      GiveRate(*flow, share, now);
      for (LinkId crossed : flow->route) {
        links_[crossed.value].unshared_rate -= share;
        --links_[crossed.value].unshared_flows;
      }
    }
  }
}

}  // namespace th
