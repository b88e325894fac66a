#include "th/memory/readable_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace th {
namespace {

struct Mapping {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool readable = false;
  bool of_file = false;  // shared memory without a name too
};

uintptr_t AddressOf(const MemoryRange& range) { return reinterpret_cast<uintptr_t>(range.address); }

bool ParseHex(absl::string_view text, uintptr_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size();
}

// "7f00-7f10 r--p 00001000 08:01 1234   /models/a.safetensors".
bool ParseLine(absl::string_view line, Mapping& mapping) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 5));
  if (words.size() < 5) return false;
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(words[0], '-');
  mapping.readable = !words[1].empty() && words[1][0] == 'r';
  mapping.of_file = words[4] != "0";  // its inode
  return ParseHex(ends.first, mapping.begin) && ParseHex(ends.second, mapping.end);
}

// By address; empty where they cannot be told.
std::vector<Mapping> MappingsOfThisProcess() {
  std::ifstream file("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<Mapping> mappings;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    Mapping mapping;
    if (ParseLine(line, mapping)) mappings.push_back(mapping);
  }
  return mappings;
}

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
  Search(std::vector<Mapping> mappings, absl::Span<const MemoryRange> ranges)
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
      auto mapping =
          std::upper_bound(mappings_.begin(), mappings_.end(), at,
                           [](uintptr_t address, const Mapping& one) { return address < one.end; });
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
  std::optional<UnreadableRange> FirstBeyond(const Mapping& mapping, const ByteProbe& probe) const {
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

  const std::vector<Mapping> mappings_;
  const absl::Span<const MemoryRange> ranges_;
  std::map<const Mapping*, uintptr_t> last_asked_;
};

}  // namespace

std::optional<UnreadableRange> FindUnreadable(absl::Span<const MemoryRange> ranges) {
  std::vector<Mapping> mappings = MappingsOfThisProcess();
  if (mappings.empty()) return std::nullopt;
  return Search(std::move(mappings), ranges).Run();
}

}  // namespace th
