// The cost of each operation of the registry by itself. The question is whether it stays the same
// from a hundred workers to a hundred thousand.
//
// A registry in this process, without server, network or disk, is driven through its public class
// by a fleet that keeps to the protocol: one trainer group publishes, seals and unpublishes; all
// other groups update at once, in an order at random (the same in every run), report progress and
// failed sources, lose their streams, come back, leave and are replaced. What counts is the
// processor time of every single call, the reading of it included; the registry's own clock is a
// virtual one, so that leases run as they would. All workers are of one model, and all groups want
// the same version: what is shared is shared by as many as can be. At the end the registry must
// have refused nothing and its rules must hold.
//
//   TH_ASSIGN_OR_RETURN(const RegistryMeasurement measured, MeasureRegistry({.workers = 1000}));
//   puts(TextOf(measured).c_str());
#ifndef TH_BENCH_REGISTRY_BENCH_H_
#define TH_BENCH_REGISTRY_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "th/bench/latencies.h"

namespace th {

// Beyond them the fleet's own book-keeping, not the registry, is what is seen.
inline constexpr uint32_t kMaxRegistryBenchWorkers = 200'000;
inline constexpr uint32_t kMaxRegistryBenchRanks = 1024;
inline constexpr uint64_t kMaxRegistryBenchSamples = 10'000'000;

struct RegistryBenchOptions {
  uint32_t workers = 10'000;  // rounded up to whole groups, at least two
  uint32_t ranks = 8;         // of a group
  uint64_t samples = 20'000;  // of each operation, at least
  // Told now and then, in a line, how far it is; may be empty.
  std::function<void(const std::string&)> progress = nullptr;
  // Asked now and then; true ends it with CANCELLED. May be empty.
  std::function<bool()> cancelled = nullptr;
};

struct OperationCost {
  std::string operation;  // the key in JSON
  std::string about;      // for people
  LatencySummary latency;
  double messages = 0;  // that one call made the registry send, on the average
};

struct RegistryMeasurement {
  uint64_t workers = 0;
  uint64_t groups = 0;
  uint32_t ranks = 0;
  std::vector<OperationCost> operations;
  double seconds = 0;  // of the whole measurement
};

// INTERNAL: the registry refused or failed something, or broke a rule of its own; CANCELLED.
absl::StatusOr<RegistryMeasurement> MeasureRegistry(const RegistryBenchOptions& options);

std::string TextOf(const RegistryMeasurement& measured);
nlohmann::json ToJson(const RegistryMeasurement& measured);

}  // namespace th

#endif  // TH_BENCH_REGISTRY_BENCH_H_
