#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "th/client/client.h"
#include "th/client/data_plane.h"
#include "th/client/memberships.h"
#include "th/client/metrics_text.h"
#include "th/monitoring/process_figures.h"

namespace th {

std::string MetricsText() {
  // A buffer may keep a membership that has ended while its process has joined as that rank again:
  // the newest counts, as samples of one name must not come twice.
  std::map<std::tuple<ModelKey, RankName>, MembershipFigures> newest;
  for (const auto& membership : LiveMemberships()) {
    MembershipFigures figures = membership->figures();
    newest.insert_or_assign({figures.key, figures.name}, std::move(figures));
  }
  std::vector<MembershipFigures> memberships;
  for (auto& [name, figures] : newest) memberships.push_back(std::move(figures));
  return RenderMetrics(memberships, TransportCountersOfProcess(), ReadProcessFigures());
}

}  // namespace th
