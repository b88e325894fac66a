#include "th/simulator/flow_network.h"

#include <algorithm>
#include <limits>

namespace th {
namespace {

// What of a link is not shared out yet.
struct Unshared {
  double rate = 0;
  uint64_t flows = 0;  // that have no rate yet
};

struct NarrowestLink {
  LinkId id;
  double share = std::numeric_limits<double>::infinity();  // of each of its flows
};

NarrowestLink FindNarrowest(const std::map<LinkId, Unshared>& unshared) {
  NarrowestLink narrowest;
  for (const auto& [id, link] : unshared) {
    if (link.flows == 0) continue;
    const double share = std::max(link.rate, 0.0) / static_cast<double>(link.flows);
    if (share < narrowest.share) narrowest = {id, share};
  }
  return narrowest;
}

}  // namespace

LinkId FlowNetwork::AddLink(std::string name, double rate) {
  links_.push_back({.name = std::move(name), .rate = rate});
  return LinkId(static_cast<uint32_t>(links_.size() - 1));
}

void FlowNetwork::SetRate(LinkId link, double rate, absl::Time now) {
  Settle(now);
  links_[link.value].rate = rate;
  changed_.insert(link);
}

FlowId FlowNetwork::AddFlow(std::vector<LinkId> route) {
  const FlowId id(++flows_made_);
  flows_[id].route = std::move(route);
  return id;
}

void FlowNetwork::RemoveFlow(FlowId id, absl::Time now) {
  Settle(now);
  const auto found = flows_.find(id);
  if (found == flows_.end()) return;
  ends_.erase({found->second.end, id});
  SetSharing(id, found->second, false);
  toggled_.erase(id);
  flows_.erase(found);
}

void FlowNetwork::Send(FlowId id, uint64_t bytes, absl::Time now) {
  Flow& flow = flows_.at(id);
  flow.sending = true;
  flow.chunk = bytes;
  flow.remaining = static_cast<double>(bytes);
  flow.since = now;
  toggled_.insert(id);
  SetEnd(id, flow);
}

bool FlowNetwork::sending(FlowId id) const {
  const auto found = flows_.find(id);
  return found != flows_.end() && found->second.sending;
}

double FlowNetwork::FlowRate(FlowId id, absl::Time now) {
  Settle(now);
  const auto found = flows_.find(id);
  return found == flows_.end() || !found->second.sending ? 0 : found->second.rate;
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
    Flow& flow = flows_.at(id);
    flow.sending = false;
    flow.end = absl::InfiniteFuture();
    toggled_.insert(id);
    for (LinkId link : flow.route) links_[link.value].bytes += flow.chunk;
    delivered.push_back(id);
  }
  return delivered;
}

void FlowNetwork::SetEnd(FlowId id, Flow& flow) {
  ends_.erase({flow.end, id});
  flow.end = absl::InfiniteFuture();
  if (!flow.sending) return;
  if (flow.route.empty()) {
    flow.end = flow.since;
  } else if (flow.rate > 0) {
    flow.end = flow.since + absl::Seconds(flow.remaining / flow.rate);
  }
  if (flow.end < absl::InfiniteFuture()) ends_.insert({flow.end, id});
}

void FlowNetwork::SetSharing(FlowId id, Flow& flow, bool sharing) {
  if (flow.sharing == sharing) return;
  flow.sharing = sharing;
  if (!sharing) flow.rate = 0;
  for (LinkId link : flow.route) {
    changed_.insert(link);
    if (sharing) {
      links_[link.value].flows.insert(id);
    } else {
      links_[link.value].flows.erase(id);
    }
  }
}

void FlowNetwork::Settle(absl::Time now) {
  for (FlowId id : toggled_) {
    Flow& flow = flows_.at(id);
    SetSharing(id, flow, flow.sending);
  }
  toggled_.clear();
  if (changed_.empty()) return;
  std::set<FlowId> flows;
  CollectTouched(&changed_, &flows);
  ShareFairly(changed_, flows, now);
  changed_.clear();
}

void FlowNetwork::CollectTouched(std::set<LinkId>* links, std::set<FlowId>* flows) const {
  std::vector<LinkId> frontier(links->begin(), links->end());
  while (!frontier.empty()) {
    const Link& link = links_[frontier.back().value];
    frontier.pop_back();
    for (FlowId id : link.flows) {
      if (!flows->insert(id).second) continue;
      for (LinkId next : flows_.at(id).route) {
        if (links->insert(next).second) frontier.push_back(next);
      }
    }
  }
}

void FlowNetwork::GiveRate(FlowId id, Flow& flow, double rate, absl::Time now) {
  flow.remaining =
      std::max(0.0, flow.remaining - flow.rate * absl::ToDoubleSeconds(now - flow.since));
  flow.since = now;
  flow.rate = rate;
  SetEnd(id, flow);
}

// Progressive filling: time and again the link that leaves its flows the least gives them their
// rates, which all other links that they cross have to give too.
void FlowNetwork::ShareFairly(const std::set<LinkId>& links, const std::set<FlowId>& flows,
                              absl::Time now) {
  std::map<LinkId, Unshared> unshared;
  for (LinkId id : links) {
    const Link& link = links_[id.value];
    if (!link.flows.empty()) unshared[id] = {link.rate, link.flows.size()};
  }
  std::set<FlowId> left = flows;
  while (!left.empty()) {
    const NarrowestLink narrowest = FindNarrowest(unshared);
    for (FlowId id : links_[narrowest.id.value].flows) {
      if (left.erase(id) == 0) continue;
      Flow& flow = flows_.at(id);
      GiveRate(id, flow, narrowest.share, now);
      for (LinkId crossed : flow.route) {
        unshared[crossed].rate -= narrowest.share;
        --unshared[crossed].flows;
      }
    }
  }
}

}  // namespace th
