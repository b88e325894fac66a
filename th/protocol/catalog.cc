#include "th/protocol/catalog.h"

namespace th {

uint64_t HeldBytes(const CatalogReplica& replica) {
  uint64_t held = 0;
  for (const CatalogRank& rank : replica.ranks) held += rank.bytes_held;
  return held;
}

uint64_t AllBytes(const CatalogReplica& replica) {
  uint64_t bytes = 0;
  for (const CatalogRank& rank : replica.ranks) bytes += rank.bytes;
  return bytes;
}

const CatalogModel* FindModel(const Catalog& catalog, const ModelKey& key) {
  for (const CatalogModel& model : catalog.models) {
    if (model.key == key) return &model;
  }
  return nullptr;
}

}  // namespace th
