// Facts that need a system call, or a library that may not be there.
#ifndef TH_DOCTOR_SYSTEM_FACTS_H_
#define TH_DOCTOR_SYSTEM_FACTS_H_

#include <optional>
#include <string>

#include "th/doctor/facts.h"

namespace th::doctor {

inline constexpr char kVerbsLibrary[] = "libibverbs.so.1";
inline constexpr char kCudaLibrary[] = "libcuda.so.1";

// Opens the library and asks which devices it has a provider for. `library`: a name or path.
VerbsLibraryFacts AskVerbsLibrary(const std::string& library);

// Opens CUDA's driver library and asks it for its version and GPUs: `gpu`'s library, init_error,
// driver_version and gpus. Takes some tenths of a second where there is a GPU; makes no context.
void AskCudaLibrary(const std::string& library, GpuFacts* gpu);

// Absent: there is no such file system.
std::optional<FileSystemSize> SizeOf(const std::string& folder);

// Tries to read memory as the transport same_host does. 0 where the kernel allows it, or an errno.
int TryReadingMemory();

// `clock`'s synchronised and max_error_us, as the kernel knows them.
void AskClock(ClockFacts* clock);

}  // namespace th::doctor

#endif  // TH_DOCTOR_SYSTEM_FACTS_H_
