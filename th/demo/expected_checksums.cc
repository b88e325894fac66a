#include "th/demo/expected_checksums.h"

#include "absl/strings/str_cat.h"

namespace th {

std::vector<std::string> ExpectedChecksums::Set(const std::string& version,
                                                const std::vector<ShardChecksum>& trainer) {
  std::vector<std::string> differences;
  for (const ShardChecksum& rank : trainer) expected_.erase({version, rank.shard});
  for (const ShardChecksum& rank : trainer) {
    const auto [known, added] = expected_.try_emplace({version, rank.shard}, rank);
    if (added || known->second.checksum == rank.checksum) continue;
    differences.push_back(absl::StrCat("version ", version, ": ", rank.rank, " and ",
                                       known->second.rank,
                                       " hold the same shard with different bytes"));
  }
  return differences;
}

std::vector<std::string> ExpectedChecksums::Compare(const std::string& version,
                                                    const std::vector<ShardChecksum>& readers) {
  std::vector<std::string> differences;
  for (const ShardChecksum& reader : readers) {
    const auto known = expected_.find({version, reader.shard});
    if (known == expected_.end()) {
      differences.push_back(absl::StrCat("version ", version, ": the trainer has no sum of shard ",
                                         reader.shard, " to compare ", reader.rank, " with"));
      continue;
    }
    ++shards_compared_;
    tensors_compared_ += reader.tensors;
    if (reader.checksum == known->second.checksum) continue;
    differences.push_back(absl::StrCat("version ", version, ": ", reader.rank,
                                       " differs from the trainer's tensors (SHA-256 ",
                                       reader.checksum, ", not ", known->second.checksum, ")"));
  }
  return differences;
}

}  // namespace th
