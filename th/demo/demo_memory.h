// How much memory the demo's processes hold for weights beyond their live buffers. Pure.
//
// Two measurements, added: what the client says it held outside the caller's buffers while it
// received (UpdateResult::peak_extra_bytes; up to kTransportBytes are requests and frames), and how
// much a process's own pages have grown since all its buffers were there and faulted in. Growth up
// to ResidentNoise() is the allocator's, gRPC's and the threads' stacks; beyond it all of it
// counts.
#ifndef TH_DEMO_DEMO_MEMORY_H_
#define TH_DEMO_DEMO_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>

namespace th {

inline constexpr uint64_t kLeastResidentNoise = uint64_t{6} << 20;
inline constexpr uint64_t kMostResidentNoise = uint64_t{32} << 20;
// A quarter of a shard, within these bounds: of a shard of 8 MiB or more no second copy hides in
// it.
uint64_t ResidentNoise(uint64_t shard_bytes);

inline constexpr uint64_t kTransportBytes = uint64_t{1} << 20;

class DemoMemory {
 public:
  explicit DemoMemory(uint64_t resident_noise) : resident_noise_(resident_noise) {}

  // Before the first transfer of a process. A process that comes again begins anew.
  void SetBaseline(const std::string& process, uint64_t resident_bytes);
  // A later measurement; of a process without a baseline it is taken as one.
  void Measure(const std::string& process, uint64_t resident_bytes);
  void AddPeakExtra(const std::string& process, uint64_t bytes);

  // The most that each process was seen to hold, summed.
  uint64_t held_beyond_live() const;

 private:
  struct Process {
    uint64_t baseline = 0;
    uint64_t growth = 0;  // the most that counts
    uint64_t peak_extra = 0;
  };
  const uint64_t resident_noise_;
  std::map<std::string, Process> processes_;
};

}  // namespace th

#endif  // TH_DEMO_DEMO_MEMORY_H_
