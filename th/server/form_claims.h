// Claims on derived forms. A claim reserves the making of one form of one version for one group, so
// that engines that ask for a version at the same moment do not each load it by name.
//
//   FormClaims claims;
//   claims.Choose(form, "rollout-1", absl::Minutes(5), now, has_group);   // "rollout-1"
//   claims.Choose(form, "rollout-2", absl::Minutes(5), now, has_group);   // "rollout-1" still
//
// A claim only saves work. Where it is lost, as by a restart of the server, two groups may make the
// same form, and both publish it. Pure; not thread-safe: the registry's loop owns it.
#ifndef TH_SERVER_FORM_CLAIMS_H_
#define TH_SERVER_FORM_CLAIMS_H_

#include <compare>
#include <cstddef>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/weights/version.h"

namespace th {

// The most claims of all models together. With so many, groups make their forms unclaimed.
inline constexpr size_t kMaxFormClaims = 4096;
// A claim ends after so long at the latest, whatever its group asked for.
inline constexpr absl::Duration kLongestFormClaim = absl::Minutes(30);

struct FormOfVersion {
  ModelKey key;
  VersionSequence version;
  std::string form;
  friend auto operator<=>(const FormOfVersion&, const FormOfVersion&) = default;
};

class FormClaims {
 public:
  // Returns the group that is to make the form: the claim's holder, while the claim has not expired
  // and `has_group` says that the holder is there; else `group`, which then holds a claim for
  // `duration`. The holder's own call sets another duration; zero releases the claim. A group has
  // one claim on a form: one that it has on another version of it ends.
  std::string Choose(
      const FormOfVersion& form, const std::string& group, absl::Duration duration, absl::Time now,
      absl::FunctionRef<bool(const ModelKey& key, const std::string& group)> has_group);
  // Removes the claim on `form`, which a group offers now.
  void Drop(const FormOfVersion& form) { claims_.erase(form); }

  size_t size() const { return claims_.size(); }

 private:
  struct Claim {
    std::string group;
    absl::Time until;
  };
  std::map<FormOfVersion, Claim> claims_;
};

}  // namespace th

#endif  // TH_SERVER_FORM_CLAIMS_H_
