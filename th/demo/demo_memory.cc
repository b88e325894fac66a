#include "th/demo/demo_memory.h"

#include <algorithm>

namespace th {

uint64_t ResidentNoise(uint64_t shard_bytes) {
  return std::clamp(shard_bytes / 4, kLeastResidentNoise, kMostResidentNoise);
}

void DemoMemory::SetBaseline(const std::string& process, uint64_t resident_bytes) {
  processes_[process].baseline = resident_bytes;
}

void DemoMemory::Measure(const std::string& process, uint64_t resident_bytes) {
  Process& known =
      processes_.try_emplace(process, Process{.baseline = resident_bytes}).first->second;
  if (resident_bytes <= known.baseline + resident_noise_) return;
  known.growth = std::max(known.growth, resident_bytes - known.baseline);
}

void DemoMemory::AddPeakExtra(const std::string& process, uint64_t bytes) {
  if (bytes <= kTransportBytes) return;
  uint64_t& peak = processes_[process].peak_extra;
  peak = std::max(peak, bytes);
}

uint64_t DemoMemory::held_beyond_live() const {
  uint64_t held = 0;
  for (const auto& [name, process] : processes_) held += process.growth + process.peak_extra;
  return held;
}

}  // namespace th
