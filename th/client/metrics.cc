#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "th/client/client.h"
#include "th/client/memberships.h"
#include "th/client/metrics_text.h"
#include "th/monitoring/process_figures.h"

namespace th {
namespace {

// Memberships under one server share a data plane, which counts once.
std::map<std::string, Transport::Counters> CountersOf(const std::set<DataPlane*>& data_planes) {
  std::map<std::string, Transport::Counters> counters;
  for (const DataPlane* data_plane : data_planes) {
    for (const Transport* transport : data_plane->transports()) {
      const Transport::Counters one = transport->counters();
      Transport::Counters& sum = counters[std::string(transport->name())];
      sum.bytes_sent += one.bytes_sent;
      sum.bytes_received += one.bytes_received;
      sum.transfers_served += one.transfers_served;
      sum.transfers_refused += one.transfers_refused;
    }
  }
  return counters;
}

}  // namespace

std::string MetricsText() {
  // A buffer may keep a membership that has ended while its process has joined as that rank again:
  // the newest counts, as samples of one name must not come twice.
  std::map<std::tuple<ModelKey, RankName>, MembershipFigures> newest;
  std::set<DataPlane*> data_planes;
  const auto live = LiveMemberships();
  for (const auto& membership : live) {
    MembershipFigures figures = membership->figures();
    newest.insert_or_assign({figures.key, figures.name}, std::move(figures));
    data_planes.insert(&membership->data_plane());
  }
  std::vector<MembershipFigures> memberships;
  for (auto& [name, figures] : newest) memberships.push_back(std::move(figures));
  return RenderMetrics(memberships, CountersOf(data_planes), ReadProcessFigures());
}

}  // namespace th
