#include "th/transfer/transport.h"

#include <algorithm>
#include <atomic>

namespace th {

TransferId NextTransferId() {
  static std::atomic<uint64_t> next{1};
  return TransferId(next.fetch_add(1));
}

Transport* FindTransport(absl::Span<Transport* const> transports, absl::string_view name) {
  const auto found = std::find_if(transports.begin(), transports.end(),
                                  [&](const Transport* each) { return each->name() == name; });
  return found == transports.end() ? nullptr : *found;
}

}  // namespace th
