// The expected bytes of each version, as SHA-256 sums. The demo takes them from the trainer's own
// tensors before it publishes, and compares every reader's final bytes with them. Pure.
#ifndef TH_DEMO_EXPECTED_CHECKSUMS_H_
#define TH_DEMO_EXPECTED_CHECKSUMS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace th {

// A rank's sum over all its tensors' sums.
struct ShardChecksum {
  std::string rank;  // "trainer/2"
  uint32_t shard = 0;
  std::string checksum;  // hex
  uint64_t tensors = 0;
};

class ExpectedChecksums {
 public:
  // The trainer's ranks, for one version. Differences: ranks with the same shard that disagree.
  std::vector<std::string> Set(const std::string& version,
                               const std::vector<ShardChecksum>& trainer);
  // A line a reader that differs, or whose version or shard the trainer never had.
  std::vector<std::string> Compare(const std::string& version,
                                   const std::vector<ShardChecksum>& readers);

  uint64_t shards_compared() const { return shards_compared_; }
  uint64_t tensors_compared() const { return tensors_compared_; }

 private:
  std::map<std::pair<std::string, uint32_t>, ShardChecksum> expected_;  // by version and shard
  uint64_t shards_compared_ = 0;
  uint64_t tensors_compared_ = 0;
};

}  // namespace th

#endif  // TH_DEMO_EXPECTED_CHECKSUMS_H_
