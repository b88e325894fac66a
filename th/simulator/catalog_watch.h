// Watches that the server knows what groups serve: a version that all ranks of a group hold is
// listed with them while they and the server hear each other, whatever the server has forgotten.
//
//   CatalogWatch watch(&cluster);
//   watch.Look();      // every now and then
//
// Not thread-safe.
#ifndef TH_SIMULATOR_CATALOG_WATCH_H_
#define TH_SIMULATOR_CATALOG_WATCH_H_

#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/version.h"

namespace th {

class Cluster;
class SimulatedWorker;

// How long a group may serve what the server does not list.
inline constexpr absl::Duration kMaxServedUnlisted = absl::Seconds(3);

class CatalogWatch {
 public:
  explicit CatalogWatch(Cluster* cluster) : cluster_(cluster) {}  // outlives it

  // Reports what is wrong to the cluster's checker, once.
  void Look();

 private:
  struct Held {
    ModelKey key;
    std::string group;
    VersionSequence version;
    friend auto operator<=>(const Held&, const Held&) = default;
  };
  // The versions that all ranks of a group hold and can report.
  std::set<Held> Served() const;
  std::set<Held> Listed() const;

  Cluster* const cluster_;
  std::map<Held, absl::Time> unlisted_since_;
};

}  // namespace th

#endif  // TH_SIMULATOR_CATALOG_WATCH_H_
