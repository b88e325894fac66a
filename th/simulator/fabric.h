// Hosts, racks and sites as links of a FlowNetwork: which links a byte crosses from one worker to
// another, and how long a message takes.
//
// Every host has a path inside and an adapter with an up- and a downlink, or one for each name that
// its workers' locations have as their first adapter; every rack and every site has an up- and a
// downlink where the spec gives it a rate, and so has every pair of sites. Links appear when a
// location is first seen. A host can be slowed down or cut off. Not thread-safe.
#ifndef TH_SIMULATOR_FABRIC_H_
#define TH_SIMULATOR_FABRIC_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/flow_network.h"
#include "th/topology/location.h"

namespace th {

// In bytes a second.
struct HostRates {
  double up = 0, down = 0;  // of each adapter
  double inside = 0;        // between the processes of the host, all together
};

// From one site to another, one way.
struct SiteLink {
  double rate = 0;  // bytes a second
  absl::Duration latency;
};

enum class LinkSide { kBoth, kUp, kDown };

// Rates in bytes a second, each way.
struct FabricSpec {
  double host_rate = 1.25e9;
  double same_host_rate = 20e9;     // between the processes of one host, all together
  std::optional<double> rack_rate;  // none: no bottleneck
  std::optional<double> site_rate;
  absl::Duration same_host_latency = absl::Microseconds(20);
  absl::Duration same_site_latency = absl::Microseconds(100);
  absl::Duration other_site_latency = absl::Milliseconds(30);
  std::map<std::string, HostRates> hosts;  // others: the two rates above
  // From the first site to the second; others: no link of their own, other_site_latency.
  std::map<std::pair<std::string, std::string>, SiteLink> site_links;
};

class Fabric {
 public:
  // `network` outlives the fabric.
  Fabric(FabricSpec spec, FlowNetwork* network) : spec_(std::move(spec)), network_(network) {}

  std::vector<LinkId> Route(const Location& from, const Location& to);
  absl::Duration Latency(const Location& from, const Location& to) const;

  // The adapters of `host` run at `factor` of their rate, on one side or on both; 1 is healthy.
  void Slow(const std::string& host, double factor, absl::Time now,
            LinkSide side = LinkSide::kBoth);
  // The same for the link from one site to another, which the spec must name.
  void SlowSiteLink(const std::string& from, const std::string& to, double factor, absl::Time now);
  // Nothing passes between `host` and others until Heal; inside it everything does.
  void Cut(const std::string& host, absl::Time now);
  void Heal(const std::string& host, absl::Time now);
  bool Connected(const Location& from, const Location& to) const;

 private:
  struct Way {
    LinkId up, down;
  };
  struct Host {
    HostRates rates;
    std::map<std::string, Way> adapters;  // by name; "": the only one
    LinkId inside;
    double up_factor = 1, down_factor = 1;
    bool cut = false;
    // The rates of each adapter.
    double up_now() const { return cut ? 0 : rates.up * up_factor; }
    double down_now() const { return cut ? 0 : rates.down * down_factor; }
  };

  Host& HostOf(const std::string& host);
  Way AdapterOf(const Location& location);
  LinkId SiteLinkOf(const std::string& from, const std::string& to, const SiteLink& link);
  // Appends the way out of `from` and into `to` where the two differ and the level has a rate.
  void Cross(const std::string& level, const std::string& from, const std::string& to,
             std::optional<double> rate, std::vector<LinkId>* route);
  Way WayOf(const std::string& name, double rate);
  void SetRates(const Host& host, absl::Time now);  // of all its adapters

  const FabricSpec spec_;
  FlowNetwork* const network_;
  std::map<std::string, Host> hosts_;
  std::set<std::string> cut_;        // of the hosts, those that are
  std::map<std::string, Way> ways_;  // of racks and sites, by "rack r1" and "site a"
  std::map<std::pair<std::string, std::string>, LinkId> site_links_;
};

}  // namespace th

#endif  // TH_SIMULATOR_FABRIC_H_
