// Bytes that share links: every flow crosses some links, every link divides its rate among the
// flows that are sending over it, max-min fairly.
//
//   const LinkId up = network.AddLink("host-a up", 125e6);
//   const LinkId down = network.AddLink("host-b down", 125e6);
//   const FlowId flow = network.AddFlow({up, down});
//   network.Send(flow, 1 << 20, now);
//   now = network.NextDelivery(now);
//   for (FlowId delivered : network.TakeDelivered(now)) ...   // Send its next chunk
//
// `now` never goes back. After any change ask NextDelivery with the same `now` before the clock
// moves: rates change only there.
//
// A flow is one connection and carries one chunk (any run of bytes) at a time. A chunk that follows
// at the moment at which the one before it was delivered changes nobody's rate: cost arises where
// flows start, end, stall or a link changes, and only for the flows that share links with those,
// directly or not.
//
// Rates are max-min fair by progressive filling (Bertsekas and Gallager, "Data Networks", 6.5.2).
// Latency is not modelled here. Deterministic; not thread-safe.
#ifndef TH_SIMULATOR_FLOW_NETWORK_H_
#define TH_SIMULATOR_FLOW_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"

namespace th {

using LinkId = StrongInt<struct LinkIdTag, uint32_t>;
using FlowId = StrongInt<struct FlowIdTag>;

class FlowNetwork {
 public:
  // Rates are in bytes a second. 0: nothing moves.
  LinkId AddLink(std::string name, double rate);
  void SetRate(LinkId link, double rate, absl::Time now);
  double rate(LinkId link) const { return links_[link.value].rate; }
  const std::string& name(LinkId link) const { return links_[link.value].name; }
  // LinkId(0) to LinkId(link_count() - 1), in the order in which they were added.
  uint32_t link_count() const { return static_cast<uint32_t>(links_.size()); }
  // Bytes of the chunks that were delivered over it.
  uint64_t bytes_over(LinkId link) const { return links_[link.value].bytes; }

  // `route` names each link once. A flow over no link delivers at once.
  FlowId AddFlow(std::vector<LinkId> route);
  // The bytes that it was sending are lost.
  void RemoveFlow(FlowId id, absl::Time now);
  // The flow must not be sending.
  void Send(FlowId id, uint64_t bytes, absl::Time now);
  bool sending(FlowId id) const;
  // The rate that it gets now; 0 when it sends nothing or one of its links does not move.
  double FlowRate(FlowId id, absl::Time now);

  // When the next chunk is through, if nothing changes before.
  absl::Time NextDelivery(absl::Time now);
  // In the order of their ends.
  std::vector<FlowId> TakeDelivered(absl::Time now);

 private:
  struct Flow;
  struct Link {
    std::string name;
    double rate = 0;
    uint64_t bytes = 0;
    std::vector<Flow*> flows;  // that share it, in the order of their ids
    bool changed = false;      // is in changed_
    // While rates are shared out: what of it is not shared out yet.
    double unshared_rate = 0;
    size_t unshared_flows = 0;  // that have no rate yet
  };
  struct Flow {
    FlowId id;
    std::vector<LinkId> route;
    bool sending = false;  // has a chunk
    bool sharing = false;  // is counted in its links' `flows`
    bool toggled = false;  // is in toggled_
    uint64_t chunk = 0;
    double remaining = 0;  // bytes of the chunk, at `since`
    double rate = 0;       // bytes a second
    absl::Time since;
    absl::Time end = absl::InfiniteFuture();
    // The round of sharing that touched it last, and whether it has no rate in that one yet.
    uint64_t touched = 0;
    bool left = false;
  };

  Flow* Find(FlowId id) const;  // null: there is none
  void Settle(absl::Time now);
  void Toggle(Flow& flow);
  void Change(LinkId link);
  void SetSharing(Flow& flow, bool sharing);
  // Adds to changed_ all links that a change of these may concern. The number of their flows.
  size_t TouchFlows();
  void ShareFairly(size_t flows, absl::Time now);
  Link* FindNarrowest();
  void GiveRate(Flow& flow, double rate, absl::Time now);
  void SetEnd(Flow& flow);

  std::vector<Link> links_;
  // By pointer, which links and lists keep while the flow lives.
  absl::flat_hash_map<FlowId, std::unique_ptr<Flow>> flows_;
  uint64_t flows_made_ = 0;
  uint64_t rounds_ = 0;          // in which rates were shared out
  std::vector<Flow*> toggled_;   // began or ended to send since the rates were settled
  std::vector<LinkId> changed_;  // likewise: have another rate or other flows
  absl::btree_set<std::pair<absl::Time, FlowId>> ends_;
};

}  // namespace th

#endif  // TH_SIMULATOR_FLOW_NETWORK_H_
