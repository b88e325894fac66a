#include "th/cli/live/fill_rates.h"

#include <utility>

namespace th {

FillRates::Place FillRates::PlaceOf(const ModelKey& model, const CatalogRank& rank) {
  return {model, rank.worker, rank.buffer_name};
}

FillRates::Sample FillRates::Next(const Sample* before, VersionSequence version, uint64_t bytes,
                                  absl::Time now) {
  Sample next{.version = version, .bytes = bytes, .changed = now};
  // Another version, or a fill that began anew: nothing to compare with.
  if (before == nullptr || before->version != version || bytes < before->bytes) return next;
  if (bytes == before->bytes) {
    next.changed = before->changed;
    next.rate = now - before->changed < kRateHolds ? before->rate : 0;
    return next;
  }
  const double seconds = absl::ToDoubleSeconds(now - before->changed);
  if (seconds > 0) next.rate = static_cast<double>(bytes - before->bytes) / seconds;
  return next;
}

void FillRates::Observe(const Catalog& catalog, absl::Time now) {
  std::map<Place, Sample> seen;
  for (const CatalogModel& model : catalog.models) {
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) {
        if (replica.state != "filling") continue;
        for (const CatalogRank& rank : replica.ranks) {
          const Place place = PlaceOf(model.key, rank);
          const auto before = samples_.find(place);
          seen[place] = Next(before == samples_.end() ? nullptr : &before->second,
                             version.info.sequence, rank.bytes_held, now);
        }
      }
    }
  }
  samples_ = std::move(seen);
}

double FillRates::BytesPerSecond(const ModelKey& model, const CatalogRank& rank) const {
  const auto found = samples_.find(PlaceOf(model, rank));
  return found == samples_.end() ? 0 : found->second.rate;
}

double FillRates::BytesPerSecond(const ModelKey& model, const CatalogReplica& replica) const {
  double sum = 0;
  for (const CatalogRank& rank : replica.ranks) sum += BytesPerSecond(model, rank);
  return sum;
}

}  // namespace th
