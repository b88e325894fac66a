#include "th/simulator/fabric.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace th {

Fabric::Way Fabric::WayOf(const std::string& name, double rate) {
  const auto found = ways_.find(name);
  if (found != ways_.end()) return found->second;
  const Way way{network_->AddLink(absl::StrCat(name, " up"), rate),
                network_->AddLink(absl::StrCat(name, " down"), rate)};
  ways_.emplace(name, way);
  return way;
}

Fabric::Host& Fabric::HostOf(const std::string& host) {
  const auto found = hosts_.find(host);
  if (found != hosts_.end()) return found->second;
  Host made;
  const auto given = spec_.hosts.find(host);
  made.rates = given != spec_.hosts.end()
                   ? given->second
                   : HostRates{spec_.host_rate, spec_.host_rate, spec_.same_host_rate};
  made.inside = network_->AddLink(absl::StrCat("host ", host, " inside"), made.rates.inside);
  return hosts_.emplace(host, std::move(made)).first->second;
}

Fabric::Way Fabric::AdapterOf(const Location& location) {
  Host& host = HostOf(location.host);
  const std::string adapter = location.nics.empty() ? "" : location.nics.front();
  const auto found = host.adapters.find(adapter);
  if (found != host.adapters.end()) return found->second;
  const std::string name =
      absl::StrCat("host ", location.host, adapter.empty() ? "" : " ", adapter);
  const Way way{network_->AddLink(absl::StrCat(name, " up"), host.up_now()),
                network_->AddLink(absl::StrCat(name, " down"), host.down_now())};
  host.adapters.emplace(adapter, way);
  return way;
}

void Fabric::Cross(const std::string& level, const std::string& from, const std::string& to,
                   std::optional<double> rate, std::vector<LinkId>* route) {
  if (from == to || !rate.has_value()) return;
  route->push_back(WayOf(absl::StrCat(level, " ", from), *rate).up);
  route->push_back(WayOf(absl::StrCat(level, " ", to), *rate).down);
}

LinkId Fabric::SiteLinkOf(const std::string& from, const std::string& to, const SiteLink& link) {
  const auto found = site_links_.find({from, to});
  if (found != site_links_.end()) return found->second;
  const LinkId id = network_->AddLink(absl::StrCat("sites ", from, " to ", to), link.rate);
  site_links_[{from, to}] = id;
  return id;
}

std::vector<LinkId> Fabric::Route(const Location& from, const Location& to) {
  if (from.host == to.host) return {HostOf(from.host).inside};
  std::vector<LinkId> route = {AdapterOf(from).up, AdapterOf(to).down};
  Cross("rack", absl::StrCat(from.site, "/", from.rack), absl::StrCat(to.site, "/", to.rack),
        spec_.rack_rate, &route);
  Cross("site", from.site, to.site, spec_.site_rate, &route);
  const auto link = spec_.site_links.find({from.site, to.site});
  if (link != spec_.site_links.end()) {
    route.push_back(SiteLinkOf(from.site, to.site, link->second));
  }
  return route;
}

absl::Duration Fabric::Latency(const Location& from, const Location& to) const {
  if (from.site == to.site) {
    return from.host == to.host ? spec_.same_host_latency : spec_.same_site_latency;
  }
  const auto link = spec_.site_links.find({from.site, to.site});
  return link != spec_.site_links.end() ? link->second.latency : spec_.other_site_latency;
}

void Fabric::SetRates(const Host& host, absl::Time now) {
  for (const auto& [name, adapter] : host.adapters) {
    network_->SetRate(adapter.up, host.up_now(), now);
    network_->SetRate(adapter.down, host.down_now(), now);
  }
}

void Fabric::Slow(const std::string& host, double factor, absl::Time now, LinkSide side) {
  Host& slowed = HostOf(host);
  if (side != LinkSide::kDown) slowed.up_factor = factor;
  if (side != LinkSide::kUp) slowed.down_factor = factor;
  SetRates(slowed, now);
}

void Fabric::SlowSiteLink(const std::string& from, const std::string& to, double factor,
                          absl::Time now) {
  const SiteLink& link = spec_.site_links.at({from, to});
  network_->SetRate(SiteLinkOf(from, to, link), link.rate * factor, now);
}

void Fabric::Cut(const std::string& host, absl::Time now) {
  Host& cut = HostOf(host);
  cut.cut = true;
  cut_.insert(host);
  SetRates(cut, now);
}

void Fabric::Heal(const std::string& host, absl::Time now) {
  Host& healed = HostOf(host);
  healed.cut = false;
  cut_.erase(host);
  SetRates(healed, now);
}

bool Fabric::Connected(const Location& from, const Location& to) const {
  return cut_.empty() || from.host == to.host ||
         !(cut_.contains(from.host) || cut_.contains(to.host));
}

}  // namespace th
