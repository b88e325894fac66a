// Watches retention from outside, by what workers hold: no version that the policy keeps may stop
// being held whole, as long as nothing but verbs happens (crashes are outside of the promise).
//
//   RetentionWatch watch(&cluster, /*keep_latest=*/2, /*shards=*/3);
//   cluster.RunUntil([&] { watch.Look(); return false; }, absl::Seconds(12));
//
// For runs in which every label is "step-N" with N rising, and nobody rolls back. Not thread-safe.
#ifndef TH_SIMULATOR_RANDOM_RUNS_RETENTION_WATCH_H_
#define TH_SIMULATOR_RANDOM_RUNS_RETENTION_WATCH_H_

#include <cstdint>
#include <set>

namespace th {

class Cluster;

class RetentionWatch {
 public:
  // `cluster` outlives it.
  RetentionWatch(Cluster* cluster, uint32_t keep_latest, uint32_t shards)
      : cluster_(cluster), keep_latest_(keep_latest), shards_(shards) {}

  // Before or after an event. What is lost is told to the cluster's checker, once.
  void Look();
  // Versions that were ever held whole.
  uint64_t versions_seen() const { return seen_.size(); }
  // The number of versions kept by the policy that some copy alone has held at some moment.
  uint64_t versions_saved() const { return saved_.size(); }

 private:
  using Step = uint64_t;  // the N of a label

  Cluster* const cluster_;
  const uint32_t keep_latest_;
  const uint32_t shards_;
  std::set<Step> whole_;  // at the last look
  std::set<Step> seen_, saved_;
  std::set<Step> named_;  // that some rank has heard a server name
};

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_RETENTION_WATCH_H_
