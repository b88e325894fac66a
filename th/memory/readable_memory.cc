#include "th/memory/readable_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/memory/memory_mappings.h"

namespace th {
namespace {

uintptr_t AddressOf(const MemoryRange& range) { return reinterpret_cast<uintptr_t>(range.address); }

// Reads single bytes without a signal where they cannot be read.
class ByteProbe {
 public:
  ByteProbe() {
    if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) ends_[0] = ends_[1] = -1;
  }
  ~ByteProbe() {
    if (ends_[0] < 0) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  ByteProbe(const ByteProbe&) = delete;
  ByteProbe& operator=(const ByteProbe&) = delete;

  // True also where it cannot be tried.
  bool CanRead(uintptr_t address) const {
    if (ends_[0] < 0) return true;
    if (write(ends_[1], reinterpret_cast<const void*>(address), 1) < 0) return errno != EFAULT;
    char byte = 0;
    return read(ends_[0], &byte, 1) == 1;
  }

 private:
  int ends_[2];
};

std::string Place(const MemoryRange& range, uintptr_t at) {
  return absl::StrCat("0x", absl::Hex(at), ", byte ", at - AddressOf(range), " of ", range.bytes);
}

class Search {
 public:
  Search(std::vector<MemoryMapping> mappings, absl::Span<const MemoryRange> ranges)
      : mappings_(std::move(mappings)), ranges_(ranges) {}

  std::optional<UnreadableRange> Run() {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (std::string why = WhyNotMapped(ranges_[i]); !why.empty()) {
        return UnreadableRange{i, std::move(why)};
      }
    }
    const ByteProbe probe;
    for (const auto& [mapping, last] : last_asked_) {
      if (!probe.CanRead(last)) return FirstBeyond(*mapping, probe);
    }
    return std::nullopt;  // also where a file has grown again meanwhile
  }

 private:
  // Empty where all of it is mapped and readable. Notes the last bytes in mappings of files.
  std::string WhyNotMapped(const MemoryRange& range) {
    const uintptr_t end = AddressOf(range) + range.bytes;
    for (uintptr_t at = AddressOf(range); at < end;) {
      auto mapping = std::upper_bound(
          mappings_.begin(), mappings_.end(), at,
          [](uintptr_t address, const MemoryMapping& one) { return address < one.end; });
      if (mapping == mappings_.end() || mapping->begin > at) {
        return absl::StrCat("nothing is mapped at ", Place(range, at));
      }
      if (!mapping->readable) {
        return absl::StrCat("the memory may not be read (PROT_NONE) at ", Place(range, at));
      }
      at = std::min(end, mapping->end);
      if (mapping->of_file) {
        uintptr_t& last = last_asked_[&*mapping];
        last = std::max(last, at - 1);
      }
    }
    return "";
  }

  // Some byte of `mapping` that is asked about cannot be read: the first range that has one.
  std::optional<UnreadableRange> FirstBeyond(const MemoryMapping& mapping,
                                             const ByteProbe& probe) const {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const uintptr_t begin = std::max(AddressOf(ranges_[i]), mapping.begin);
      const uintptr_t end = std::min(AddressOf(ranges_[i]) + ranges_[i].bytes, mapping.end);
      if (begin >= end || probe.CanRead(end - 1)) continue;
      return UnreadableRange{
          i, absl::StrCat("the file that is mapped there has become shorter, and ends before ",
                          Place(ranges_[i], end - 1))};
    }
    return std::nullopt;
  }

  const std::vector<MemoryMapping> mappings_;
  const absl::Span<const MemoryRange> ranges_;
  std::map<const MemoryMapping*, uintptr_t> last_asked_;
};

}  // namespace

std::optional<UnreadableRange> FindUnreadable(absl::Span<const MemoryRange> ranges) {
  std::vector<MemoryMapping> mappings = MappingsOfThisProcess();
  if (mappings.empty()) return std::nullopt;
  return Search(std::move(mappings), ranges).Run();
}

}  // namespace th
