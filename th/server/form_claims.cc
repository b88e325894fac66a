#include "th/server/form_claims.h"

#include <algorithm>
#include <map>

namespace th {

std::string FormClaims::Choose(
    const FormOfVersion& form, const std::string& group, absl::Duration claim, absl::Time now,
    absl::FunctionRef<bool(const ModelKey&, const std::string&)> has_rank) {
  const auto is_live = [&](const FormOfVersion& of, const Claim& made) {
    return made.until > now && has_rank(of.key, made.group);
  };
  const auto found = claims_.find(form);
  if (found != claims_.end() && found->second.group != group && is_live(form, found->second)) {
    return found->second.group;
  }
  // The form is free, and the group makes none of its other versions any more.
  std::erase_if(claims_, [&](const auto& entry) {
    const auto& [of, made] = entry;
    return of.key == form.key && of.form == form.form &&
           (of.version == form.version || made.group == group);
  });
  if (claim <= absl::ZeroDuration()) return group;
  if (claims_.size() >= kMaxFormClaims) {
    std::erase_if(claims_, [&](const auto& entry) { return !is_live(entry.first, entry.second); });
  }
  if (claims_.size() < kMaxFormClaims) {
    claims_[form] = {group, now + std::min(claim, kLongestFormClaim)};
  }
  return group;
}

}  // namespace th
