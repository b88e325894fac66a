// How much memory the demo's processes hold for weights beyond their live buffers. Pure.
//
// Two measurements, added: what the client says it held outside the caller's buffers while it
// received (UpdateResult::peak_extra_bytes), and how much a process's own pages have grown since
// all its buffers were there and faulted in. Growth below kResidentNoise is the allocator's, gRPC's
// and the threads' stacks; from there on all of it counts.
#ifndef TH_CLI_DEMO_MEMORY_H_
#define TH_CLI_DEMO_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>

namespace th {

inline constexpr uint64_t kResidentNoise = uint64_t{32} << 20;

class DemoMemory {
 public:
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
  std::map<std::string, Process> processes_;
};

}  // namespace th

#endif  // TH_CLI_DEMO_MEMORY_H_
