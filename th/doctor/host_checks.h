// Checks of what a host allows its processes: reading each other's memory, shared memory,
// descriptors, huge pages, GPUs, time. Pure.
#ifndef TH_DOCTOR_HOST_CHECKS_H_
#define TH_DOCTOR_HOST_CHECKS_H_

#include <vector>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

// The least version of CUDA that the driver must have: that of the toolkit which compiles the
// kernels. 13000: 13.0.
inline constexpr int kLeastCudaVersion = 13000;

Finding CheckGpus(const GpuFacts& gpu);                      // gpus
Finding CheckMemoryOfOthers(const ProcessFacts& process);    // process-memory
Finding CheckSharedMemory(const MemoryFacts& memory);        // shared-memory
Finding CheckHugePages(const MemoryFacts& memory);           // huge-pages
Finding CheckOpenFiles(const ProcessFacts& process);         // open-files
Finding CheckClockSource(const ClockFacts& clock);           // clock-source
Finding CheckClockSynchronisation(const ClockFacts& clock);  // clock-synchronisation

}  // namespace th::doctor

#endif  // TH_DOCTOR_HOST_CHECKS_H_
