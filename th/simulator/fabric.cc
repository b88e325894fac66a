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
  made.adapter = WayOf(absl::StrCat("host ", host), spec_.host_rate);
  made.inside = network_->AddLink(absl::StrCat("host ", host, " inside"), spec_.same_host_rate);
  return hosts_.emplace(host, made).first->second;
}

void Fabric::Cross(const std::string& level, const std::string& from, const std::string& to,
                   std::optional<double> rate, std::vector<LinkId>* route) {
  if (from == to || !rate.has_value()) return;
  route->push_back(WayOf(absl::StrCat(level, " ", from), *rate).up);
  route->push_back(WayOf(absl::StrCat(level, " ", to), *rate).down);
}

std::vector<LinkId> Fabric::Route(const Location& from, const Location& to) {
  const LinkId inside = HostOf(from.host).inside;
  if (from.host == to.host) return {inside};
  std::vector<LinkId> route = {HostOf(from.host).adapter.up, HostOf(to.host).adapter.down};
  Cross("rack", absl::StrCat(from.site, "/", from.rack), absl::StrCat(to.site, "/", to.rack),
        spec_.rack_rate, &route);
  Cross("site", from.site, to.site, spec_.site_rate, &route);
  return route;
}

absl::Duration Fabric::Latency(const Location& from, const Location& to) const {
  if (from.site != to.site) return spec_.other_site_latency;
  return from.host == to.host ? spec_.same_host_latency : spec_.same_site_latency;
}

void Fabric::SetRates(const Host& host, absl::Time now) {
  const double rate = host.cut ? 0 : spec_.host_rate * host.factor;
  network_->SetRate(host.adapter.up, rate, now);
  network_->SetRate(host.adapter.down, rate, now);
}

void Fabric::Slow(const std::string& host, double factor, absl::Time now) {
  Host& slowed = HostOf(host);
  slowed.factor = factor;
  SetRates(slowed, now);
}

void Fabric::Cut(const std::string& host, absl::Time now) {
  Host& cut = HostOf(host);
  cut.cut = true;
  SetRates(cut, now);
}

void Fabric::Heal(const std::string& host, absl::Time now) {
  Host& healed = HostOf(host);
  healed.cut = false;
  SetRates(healed, now);
}

bool Fabric::Connected(const Location& from, const Location& to) const {
  if (from.host == to.host) return true;
  for (const std::string* host : {&from.host, &to.host}) {
    const auto found = hosts_.find(*host);
    if (found != hosts_.end() && found->second.cut) return false;
  }
  return true;
}

}  // namespace th
