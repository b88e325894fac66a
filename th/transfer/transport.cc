#include "th/transfer/transport.h"

#include <atomic>

namespace th {

TransferId NextTransferId() {
  static std::atomic<uint64_t> next{1};
  return TransferId(next.fetch_add(1));
}

}  // namespace th
