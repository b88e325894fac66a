#include "th/reference_registry/published_again.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

bool HasPublisher(const Version& version, const std::string& form) {
  return !EveryShardOf(version, form, [](const Shard& shard) { return shard.publishers == 0; });
}

// Whether the replica may ask again for the publication that made the version: an earlier server
// carried it out, and its ranks have not heard the result. Then nobody else is its publisher.
bool MayBeAskedAgain(const RegistryState& state, const Version& version, const Replica& replica) {
  return state.adopting && version.from_earlier_reign && replica.group->adopted &&
         !replica.finished_here && !HasPublisher(version, replica.form);
}

// Whether what the version has in the form can be compared with nothing, and is not to be had.
bool IsLost(const RegistryState& state, const Version& version, const std::string& form) {
  bool has_sums = true;
  for (const auto& [key, shard] : version.shards) {
    if (key.form != form) continue;
    if (IsUnsealable(shard)) return true;
    if (LacksSums(state, key.layout)) has_sums = false;
  }
  return !has_sums && !IsSomewhere(version, form);
}

}  // namespace

bool MayBePublishedAgain(const RegistryState& state, const Version& version,
                         const Replica& replica) {
  if (!version.announced) return false;
  const bool is_lost = TH_MUTATE(kJoinLostVersions, IsLost(state, version, replica.form), false);
  return !is_lost || MayBeAskedAgain(state, version, replica);
}

bool LacksSums(const RegistryState& state, const Digest& layout) {
  const ShardLayout* known = FindLayoutOf(state, layout);
  return known != nullptr && known->checksum() == ChecksumAlgorithm::kNone;
}

absl::Status LabelInUse(const Version& version, absl::string_view difference) {
  return absl::AlreadyExistsError(
      absl::StrCat("label '", version.info.label.text(), "' belongs to ", version.info.ToString(),
                   ", and this is other content: ", difference,
                   "; publish under another label, or roll back first"));
}

absl::Status CanBeCompared(const RegistryState& state, const Version& version,
                           const Buffer& buffer) {
  const Replica& replica = *buffer.replica;
  const bool cannot = LacksSums(state, buffer.layout) && IsSomewhere(version, replica.form) &&
                      !MayBeAskedAgain(state, version, replica);
  if (!TH_MUTATE(kAgreeWithoutSums, cannot, false)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "label '", version.info.label.text(), "' belongs to ", version.info.ToString(),
      ", which others hold, and nobody can tell whether this is the same content: the shard of "
      "rank ",
      NameOf(buffer).ToString(),
      " has no checksums; update to that version instead, or publish under another label"));
}

}  // namespace th::registry
