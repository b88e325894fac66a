#include "th/reference_registry/published_again.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

// "label 'step-1' belongs to step-1 (#1.1)".
std::string DescribeLabelOwner(const Version& version) {
  return absl::StrCat("label '", version.info.label.text(), "' belongs to ",
                      version.info.ToString());
}

bool HasPublisher(const Version& version, const std::string& form) {
  return std::any_of(version.shards.begin(), version.shards.end(), [&](const auto& entry) {
    return entry.first.form == form && entry.second.publishers > 0;
  });
}

// True when the replica may be repeating the publication that made the version: an earlier server
// carried it out, and the ranks have not heard the result. The form then has no other publisher.
bool MayBeAskedAgain(const RegistryState& state, const Version& version, const Replica& replica) {
  return state.adopting && version.from_earlier_epoch && replica.group->adopted &&
         !replica.finished_here && !HasPublisher(version, replica.form);
}

// True when content published now cannot be compared with what the version has in the form: a shard
// has no root and no publisher left to tell one, or the form has no checksums and some shard has no
// holder that has, or is about to have, all of it.
bool IsIncomparable(const RegistryState& state, const Version& version, const std::string& form) {
  bool has_checksums = true;
  for (const auto& [key, shard] : version.shards) {
    if (key.form != form) continue;
    if (IsUnsealable(shard)) return true;
    if (LacksChecksums(state, key.layout)) has_checksums = false;
  }
  return !has_checksums && !IsSomewhere(version, form);
}

}  // namespace

bool MayBePublishedAgain(const RegistryState& state, const Version& version,
                         const Replica& replica) {
  if (!version.announced) return false;
  const bool incomparable =
      TH_MUTATE(kJoinLostVersions, IsIncomparable(state, version, replica.form), false);
  return !incomparable || MayBeAskedAgain(state, version, replica);
}

absl::Status CheckNotDisplaced(const Version& version) {
  if (version.displaced_buffers == 0) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(DescribeLabelOwner(version),
                   ", whose publisher is updating and may keep it, and this content cannot be "
                   "compared with it; publish again later, or under another label"));
}

bool LacksChecksums(const RegistryState& state, const Digest& layout) {
  const ShardLayout* known = FindLayoutOf(state, layout);
  return known != nullptr && known->checksum() == ChecksumAlgorithm::kNone;
}

absl::Status LabelInUseError(const Version& version, absl::string_view difference) {
  return absl::AlreadyExistsError(
      absl::StrCat(DescribeLabelOwner(version), ", and this is other content: ", difference,
                   "; publish under another label, or roll back first"));
}

absl::Status CheckComparable(const RegistryState& state, const Version& version,
                             const Buffer& buffer) {
  const Replica& replica = *buffer.replica;
  const bool would_mix_bytes = LacksChecksums(state, buffer.layout) &&
                               IsSomewhere(version, replica.form) &&
                               !MayBeAskedAgain(state, version, replica);
  if (!TH_MUTATE(kAgreeWithoutChecksums, would_mix_bytes, false)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      DescribeLabelOwner(version),
      ", which others hold, and nobody can tell whether this is the same content: the shard of "
      "rank ",
      NameOf(buffer).ToString(),
      " has no checksums; update to that version instead, or publish under another label"));
}

}  // namespace th::registry
