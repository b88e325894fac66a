#include "th/client/applied.h"

#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

bool IsWhole(const CatalogReplica& replica) {
  const std::string& state = replica.state;
  return state == "published" || state == "complete" || state == "leaving";
}

// Copies in host memory are not what the group works with.
bool IsOwn(const CatalogReplica& replica, const std::string& group) {
  return replica.group == group && replica.role == BufferRole::kPrimary;
}

std::string Describe(const CatalogReplica& replica) {
  uint64_t held = 0, bytes = 0;
  for (const CatalogRank& rank : replica.ranks) {
    held += rank.bytes_held;
    bytes += rank.bytes;
  }
  return absl::StrCat("is ", replica.state, ", ", held, " of ", bytes, " bytes");
}

// The words for what the group has instead.
std::string DescribeOther(const CatalogModel& model, const std::string& group) {
  for (const CatalogVersion& version : model.versions) {
    for (const CatalogReplica& replica : version.replicas) {
      if (!IsOwn(replica, group)) continue;
      return absl::StrCat(IsWhole(replica) ? "holds " : absl::StrCat("is ", replica.state, " "),
                          version.info.ToString());
    }
  }
  const bool idle = absl::c_any_of(
      model.idle, [&](const CatalogReplica& replica) { return IsOwn(replica, group); });
  return idle ? "holds nothing" : "has not joined";
}

// Empty: the group holds the version, on all its ranks.
std::string WhyNot(const CatalogModel* model, const VersionInfo& version,
                   const std::string& group) {
  if (model == nullptr) return "has not joined";
  bool holds = false;
  for (const CatalogVersion& listed : model->versions) {
    if (listed.info.sequence != version.sequence) continue;
    for (const CatalogReplica& replica : listed.replicas) {
      if (!IsOwn(replica, group)) continue;
      if (!IsWhole(replica)) return Describe(replica);
      holds = true;
    }
  }
  return holds ? "" : DescribeOther(*model, group);
}

}  // namespace

AppliedResult FindApplied(const CatalogModel* model, bool recovering, const VersionInfo& version,
                          const std::vector<std::string>& groups) {
  AppliedResult result{.version = version, .applied = {}, .lacking = {}};
  for (const std::string& group : groups) {
    std::string why = WhyNot(model, version, group);
    if (why.empty() && recovering) {
      why =
          "is not known to hold it on all ranks: the server has restarted, and ranks may still "
          "come back";
    }
    if (why.empty()) {
      result.applied.push_back(group);
    } else {
      result.lacking.push_back({group, std::move(why)});
    }
  }
  return result;
}

}  // namespace th
