#include "th/weights/shard_partition.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

struct Load {
  uint64_t bytes = 0;
  uint64_t tensors = 0;
  uint32_t shard = 0;

  friend bool operator>(const Load& a, const Load& b) {
    return std::tie(a.bytes, a.tensors, a.shard) > std::tie(b.bytes, b.tensors, b.shard);
  }
};

using ShardOfName = absl::flat_hash_map<absl::string_view, uint32_t>;

// Largest first, each to the lightest shard. Fails when a name comes twice.
absl::StatusOr<ShardOfName> AssignOwners(std::vector<const TensorSpec*> owners,
                                         uint32_t shard_count) {
  std::sort(owners.begin(), owners.end(), [](const TensorSpec* a, const TensorSpec* b) {
    return std::tie(b->bytes, a->name) < std::tie(a->bytes, b->name);
  });
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (uint32_t shard = 0; shard < shard_count; ++shard) lightest.push({.shard = shard});
  ShardOfName shard_of;
  for (const TensorSpec* owner : owners) {
    Load load = lightest.top();
    lightest.pop();
    if (!shard_of.emplace(owner->name, load.shard).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(owner->name), ": two tensors have this name"));
    }
    load.bytes += owner->bytes;
    ++load.tensors;
    lightest.push(load);
  }
  return shard_of;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<TensorSpec>>> SplitIntoShards(
    std::vector<TensorSpec> tensors, uint32_t shard_count) {
  std::vector<const TensorSpec*> owners;
  for (TensorSpec& tensor : tensors) {
    TH_ASSIGN_OR_RETURN(tensor, CompleteTensorSpec(std::move(tensor)));
    if (tensor.alias_of.empty()) owners.push_back(&tensor);
  }
  if (shard_count == 0 || shard_count > owners.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make ", shard_count, " shards of ", owners.size(), " tensors"));
  }
  TH_ASSIGN_OR_RETURN(const ShardOfName shard_of, AssignOwners(std::move(owners), shard_count));
  std::vector<uint32_t> shards;
  for (const TensorSpec& tensor : tensors) {
    const auto found = shard_of.find(tensor.alias_of.empty() ? tensor.name : tensor.alias_of);
    if (found == shard_of.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), ": alias of ",
                                                     Quoted(tensor.alias_of),
                                                     ", which is not there"));
    }
    shards.push_back(found->second);
  }
  std::vector<std::vector<TensorSpec>> result(shard_count);
  for (size_t i = 0; i < tensors.size(); ++i) result[shards[i]].push_back(std::move(tensors[i]));
  return result;
}

}  // namespace th
