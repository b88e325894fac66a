// A range of memory that weights lie in or are received into, as transports see it: its address in
// this process, what kind of memory it is, and on which device.
//
//   const MemoryRegion region{.address = data, .bytes = bytes};  // of the host
//
// A value.
#ifndef TH_MEMORY_MEMORY_REGION_H_
#define TH_MEMORY_MEMORY_REGION_H_

#include <cstdint>
#include <string>

namespace th {

enum class MemoryKind : uint8_t {
  kHost,    // arenas among them: shared_memory.h tells which those are, whenever it is asked
  kDevice,  // of a GPU: `address` is a device pointer, which the host must not dereference
};

struct MemoryRegion {
  void* address = nullptr;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  // The PCI address of the GPU ("0000:3b:00.0"), which all processes of a host agree on. Empty
  // unless `kind` is kDevice.
  std::string device;
  friend bool operator==(const MemoryRegion&, const MemoryRegion&) = default;
};

}  // namespace th

#endif  // TH_MEMORY_MEMORY_REGION_H_
