#include "th/server/form_claims.h"

#include <algorithm>
#include <map>

namespace th {

std::string FormClaims::Choose(
    const FormOfVersion& form, const std::string& group, absl::Duration duration, absl::Time now,
    absl::FunctionRef<bool(const ModelKey& key, const std::string& group)> has_group) {
  const auto is_live = [&](const FormOfVersion& of, const Claim& made) {
    return made.until > now && has_group(of.key, made.group);
  };
  const auto found = claims_.find(form);
  if (found != claims_.end() && found->second.group != group && is_live(form, found->second)) {
    return found->second.group;
  }
  // No other group holds the form. The claim on it is made anew below, and the group's claims on
  // other versions of it end.
  std::erase_if(claims_, [&](const auto& entry) {
    const auto& [of, made] = entry;
    return of.key == form.key && of.form == form.form &&
           (of.version == form.version || made.group == group);
  });
  if (duration <= absl::ZeroDuration()) return group;
  if (claims_.size() >= kMaxFormClaims) {
    std::erase_if(claims_, [&](const auto& entry) { return !is_live(entry.first, entry.second); });
  }
  if (claims_.size() < kMaxFormClaims) {
    claims_[form] = {group, now + std::min(duration, kLongestFormClaim)};
  }
  return group;
}

}  // namespace th
