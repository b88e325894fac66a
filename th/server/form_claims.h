// Which group is to make a form of a version that nobody offers yet: one at a time, so that engines
// that are told of a version at the same moment do not each load it by name.
//
//   FormClaims claims;
//   claims.Choose(form, "rollout-1", absl::Minutes(5), now, has_rank);   // "rollout-1"
//   claims.Choose(form, "rollout-2", absl::Minutes(5), now, has_rank);   // "rollout-1" still
//
// Nothing rests on a claim but time: a server that restarts has forgotten them, and two groups that
// make the same form publish it twice. Pure; not thread-safe: the registry's loop owns it.
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
  // Returns the group that is to make the form: the one that was chosen before, while `has_rank`
  // says that it is there and its time is not over; else `group`, which has `claim` for it from now
  // on. The group that was chosen may ask again, for another time; zero gives the form back. A
  // group makes one version of a form at a time: what it was chosen for before, it makes no more.
  std::string Choose(const FormOfVersion& form, const std::string& group, absl::Duration claim,
                     absl::Time now,
                     absl::FunctionRef<bool(const ModelKey&, const std::string&)> has_rank);
  // Somebody offers the form.
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
