#include "th/memory/memory_mappings.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace th {

// "7f00-7f10 r--p 00001000 08:01 1234   /models/a.safetensors".
std::vector<MemoryMapping> ParseMappings(absl::string_view maps) {
  constexpr size_t kRights = 1, kInode = 4;
  std::vector<MemoryMapping> mappings;
  for (const absl::string_view line : absl::StrSplit(maps, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', kInode + 1));
    const std::vector<absl::string_view> ends = absl::StrSplit(words[0], '-');
    MemoryMapping mapping;
    if (ends.size() != 2 || !absl::SimpleHexAtoi(ends[0], &mapping.begin) ||
        !absl::SimpleHexAtoi(ends[1], &mapping.end) || mapping.begin >= mapping.end) {
      continue;
    }
    mapping.readable = words.size() > kRights && absl::StartsWith(words[kRights], "r");
    mapping.of_file = words.size() > kInode && words[kInode] != "0";
    mappings.push_back(mapping);
  }
  return mappings;
}

std::vector<MemoryMapping> MappingsOfThisProcess() {
  std::ifstream file("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return ParseMappings(text);
}

}  // namespace th
