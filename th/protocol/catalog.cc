#include "th/protocol/catalog.h"

namespace th {

const CatalogModel* FindModel(const Catalog& catalog, const ModelKey& key) {
  for (const CatalogModel& model : catalog.models) {
    if (model.key == key) return &model;
  }
  return nullptr;
}

}  // namespace th
