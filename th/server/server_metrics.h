// Counters of the shell around the registry. The registry counts its own part (RegistryCounters).
#ifndef TH_SERVER_SERVER_METRICS_H_
#define TH_SERVER_SERVER_METRICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace th {

// A Prometheus histogram of durations. Thread-safe.
class DurationHistogram {
 public:
  // Upper bounds in seconds; a last bucket holds the rest.
  static constexpr std::array<double, 12> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                     0.01,   0.025,   0.05,   0.1,   0.5,    2.5};

  void Record(absl::Duration duration) {
    const double seconds = absl::ToDoubleSeconds(duration);
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(absl::ToInt64Nanoseconds(duration), std::memory_order_relaxed);
  }
  // The count of one bucket alone; `bucket` <= kBounds.size().
  uint64_t Count(size_t bucket) const { return buckets_[bucket].load(std::memory_order_relaxed); }
  double SumSeconds() const { return total_ns_.load(std::memory_order_relaxed) / 1e9; }

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<int64_t> total_ns_{0};
};

// Thread-safe: every field stands for itself.
struct ServerMetrics {
  std::atomic<int64_t> streams{0};  // open now
  // For want of a file descriptor; one that waits for a descriptor counts at each try.
  std::atomic<uint64_t> connections_refused{0};
  std::atomic<uint64_t> frames_received{0};     // on streams
  std::atomic<uint64_t> frames_sent{0};         // on streams
  std::atomic<uint64_t> frames_ignored{0};      // of a kind that this build does not know
  std::atomic<uint64_t> frames_refused{0};      // malformed or beyond a limit
  std::atomic<uint64_t> streams_overflowed{0};  // closed because their peer did not read
  std::atomic<uint64_t> calls{0};               // of controllers
  std::atomic<uint64_t> calls_refused{0};       // too many at once
  std::atomic<int64_t> waits{0};                // controllers that wait for a version now
  std::atomic<uint64_t> pauses{0};              // times that the loop did not run when it was due
  std::atomic<uint64_t> durable_writes{0};
  std::atomic<uint64_t> events_lost{0};     // that the event log could not take
  DurationHistogram turn_seconds;           // from the oldest event's arrival to its answers
  DurationHistogram durable_write_seconds;  // of the state file
};

}  // namespace th

#endif  // TH_SERVER_SERVER_METRICS_H_
