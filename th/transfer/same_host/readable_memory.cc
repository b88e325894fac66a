#include "th/transfer/same_host/readable_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <utility>

#include "th/memory/memory_mappings.h"

namespace th::same_host {
namespace {

// False only where the kernel says that there is memory which it does not read for others.
bool CanRead(uintptr_t address) {
  char byte = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): mappings are compared as numbers.
  const iovec from{reinterpret_cast<void*>(address), 1};
  const iovec into{&byte, 1};
  return process_vm_readv(getpid(), &into, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

// Tries each mapping once.
class Mappings {
 public:
  bool CanReadAll(const MemoryRegion& region) {
    static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(region.address);
    const uintptr_t end = begin + region.bytes;
    // It lies in two pages at most: the list, which may take milliseconds, would say no more.
    if (!listed_ && region.bytes <= page_bytes) return CanRead(begin) && CanRead(end - 1);
    List();
    auto next = std::upper_bound(
        mappings_.begin(), mappings_.end(), begin,
        [](uintptr_t address, const MemoryMapping& mapping) { return address < mapping.end; });
    for (uintptr_t at = begin; at < end; ++next) {
      if (next == mappings_.end()) return CanRead(at) && CanRead(end - 1);
      // The addresses before it are not listed, or mapped only now.
      if (at < next->begin && !CanRead(at)) return false;
      if (next->begin >= end) return CanRead(end - 1);
      if (!CanReadFrom(*next, std::max(at, next->begin))) return false;
      at = next->end;
    }
    return true;
  }

 private:
  void List() {
    if (std::exchange(listed_, true)) return;
    mappings_ = MappingsOfThisProcess();
  }
  bool CanReadFrom(const MemoryMapping& mapping, uintptr_t address) {
    const auto [tried, is_new] = tried_.try_emplace(mapping.begin, false);
    if (is_new) tried->second = CanRead(address);
    return tried->second;
  }

  bool listed_ = false;
  std::vector<MemoryMapping> mappings_;  // none where there is no /proc
  std::map<uintptr_t, bool> tried_;      // by where they begin
};

}  // namespace

std::vector<MemoryRegion> FindUnreadable(absl::Span<const MemoryRegion> regions) {
  const auto is_of_host = [](const MemoryRegion& region) {
    return region.kind == MemoryKind::kHost && region.bytes > 0;
  };
  std::vector<MemoryRegion> found;
  if (std::none_of(regions.begin(), regions.end(), is_of_host)) return found;
  Mappings mappings;
  for (const MemoryRegion& region : regions) {
    if (is_of_host(region) && !mappings.CanReadAll(region)) found.push_back(region);
  }
  return found;
}

}  // namespace th::same_host
