// Faults of the server of a random run: it restarts, falls silent, is slow, or comes
// back knowing less than it did.
//
// Until HealAll; what it has begun by then it ends by itself. Not thread-safe.
#ifndef TH_SIMULATOR_SERVER_FAULTS_H_
#define TH_SIMULATOR_SERVER_FAULTS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/simulator/simulated_server.h"

namespace th {

class Cluster;

// The first epoch of a server whose disk was replaced, beside the last one that had begun before.
// As a rule it is higher, for it counts seconds (th/coordination); not where a clock is wrong.
enum class EpochAfterLoss : uint8_t { kHigher, kEqual, kFromTheDisk };

class ServerFaults {
 public:
  explicit ServerFaults(Cluster* cluster) : cluster_(cluster) {}  // outlives it

  // Killed, and started after `away`. Nothing where it does not run.
  void Restart(absl::Duration away);
  // Its host neither answers nor closes anything.
  void Silence(absl::Duration lasting);
  // One turn of its loop after the other takes long.
  void SlowDown(absl::Time until);
  // Killed, and started after `away` with a disk on which nothing is.
  void LoseState(absl::Duration away, EpochAfterLoss epoch);
  // `later` it is killed and starts with what is on its disk now.
  void RestoreState(absl::Duration later, EpochAfterLoss epoch);
  // It runs, answers, and goes wrong no more.
  void HealAll();

 private:
  SimulatedServer& server() const;
  void ReplaceDisk(ServerDisk disk, absl::Duration away, EpochAfterLoss epoch);

  Cluster* const cluster_;
  bool healed_ = false;
  uint64_t disks_ = 1;
};

}  // namespace th

#endif  // TH_SIMULATOR_SERVER_FAULTS_H_
