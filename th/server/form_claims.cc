#include "th/server/form_claims.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th {

absl::StatusOr<std::string> FormClaims::Choose(
    const FormOfVersion& form, const std::string& group, absl::Duration claim, absl::Time now,
    absl::FunctionRef<bool(const ModelKey&, const std::string&)> has_rank) {
  const auto found = claims_.find(form);
  const bool anothers = found != claims_.end() && found->second.group != group &&
                        found->second.until > now && has_rank(form.key, found->second.group);
  if (anothers) return found->second.group;
  if (claim <= absl::ZeroDuration()) {
    if (found != claims_.end()) claims_.erase(found);
    return group;
  }
  if (found == claims_.end() && claims_.size() >= kMaxFormClaims) {
    std::erase_if(claims_, [&](const auto& entry) { return entry.second.until <= now; });
    if (claims_.size() >= kMaxFormClaims) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "groups of this server are making ", kMaxFormClaims, " forms already; try again"));
    }
  }
  claims_[form] = {group, now + std::min(claim, kLongestFormClaim)};
  return group;
}

}  // namespace th
