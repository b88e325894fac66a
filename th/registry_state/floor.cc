#include "th/registry_state/floor.h"

#include <algorithm>

namespace th::registry {
namespace {

// The floor in a history without what was rolled back since the caller's lineage.
VersionSequence SurvivingFloor(const Model& model, VersionSequence floor, Lineage lineage) {
  const Version* version = FindVersion(model, floor);
  if (version != nullptr) lineage = version->info.lineage;
  for (const DurableRollBack& roll_back : model.durable.roll_backs) {
    if (lineage < roll_back.lineage) floor = std::min(floor, roll_back.to);
  }
  return floor;
}

Lineage OldestLineage(const Replica& replica) {
  Lineage oldest = replica.group->model->durable.lineage;
  for (const auto& [rank, buffer] : replica.buffers) {
    oldest = std::min(oldest, buffer->worker->lineage);
  }
  return oldest;
}

}  // namespace

bool IsBehindFloor(const Replica& replica, VersionSequence version, VersionSequence floor) {
  return version < SurvivingFloor(*replica.group->model, floor, OldestLineage(replica));
}

}  // namespace th::registry
