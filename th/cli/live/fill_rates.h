// How fast shards arrive, from one listing of the server to the next.
//
//   FillRates rates;
//   rates.Observe(catalog, now);             // at every refresh
//   rates.BytesPerSecond(model, rank);       // 0 until two of its progress reports are known
//
// Progress reaches the server about once a second, and listings may come more often: a rate is
// taken between two listings in which the progress differs, and holds until kRateHolds has passed
// without any. Pure; not thread-safe.
#ifndef TH_CLI_LIVE_FILL_RATES_H_
#define TH_CLI_LIVE_FILL_RATES_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "th/protocol/catalog.h"

namespace th {

inline constexpr absl::Duration kRateHolds = absl::Seconds(3);

class FillRates {
 public:
  // `now` rises. What the catalog does not list any more is forgotten.
  void Observe(const Catalog& catalog, absl::Time now);
  // The rate of one rank, and of all of a replica's ranks together.
  double BytesPerSecond(const ModelKey& model, const CatalogRank& rank) const;
  double BytesPerSecond(const ModelKey& model, const CatalogReplica& replica) const;

 private:
  // A worker's buffer.
  using Place = std::tuple<ModelKey, WorkerId, std::string>;
  struct Sample {
    VersionSequence version;
    uint64_t bytes = 0;
    absl::Time changed;  // when `bytes` was first seen
    double rate = 0;
  };
  static Place PlaceOf(const ModelKey& model, const CatalogRank& rank);
  static Sample Next(const Sample* before, VersionSequence version, uint64_t bytes, absl::Time now);

  std::map<Place, Sample> samples_;
};

}  // namespace th

#endif  // TH_CLI_LIVE_FILL_RATES_H_
