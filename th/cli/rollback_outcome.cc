#include "th/cli/rollback_outcome.h"

#include <algorithm>
#include <map>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

bool IsAsked(const VersionSelector& asked, const VersionInfo& answered) {
  if (const auto* label = std::get_if<VersionLabel>(&asked)) return *label == answered.label;
  if (const auto* sequence = std::get_if<VersionSequence>(&asked)) {
    return *sequence == answered.sequence;
  }
  return true;
}

// The versions to which readers could still move.
std::map<VersionSequence, std::string> LaterThan(VersionSequence to, const Catalog& catalog,
                                                 const ModelKey& key) {
  std::map<VersionSequence, std::string> later;
  for (const CatalogModel& model : catalog.models) {
    if (model.key != key) continue;
    for (const CatalogVersion& version : model.versions) {
      const bool offered = version.published && !version.withdrawn;
      if (offered && version.info.sequence > to) {
        later[version.info.sequence] = version.info.ToString();
      }
    }
  }
  return later;
}

}  // namespace

absl::Status CheckKeyIsOfThis(const VersionSelector& asked, const VersionInfo& answered,
                              const std::string& key) {
  if (IsAsked(asked, answered)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--key ", key, " is that of an earlier roll-back, to ", answered.ToString(),
                   ": nothing was done; a roll-back to ", ToString(asked),
                   " takes a key of its "
                   "own"));
}

RollBackOutcome OutcomeOf(const Catalog& before, const Catalog& after, const ModelKey& key,
                          const VersionInfo& to) {
  const auto then = LaterThan(to.sequence, before, key), now = LaterThan(to.sequence, after, key);
  RollBackOutcome outcome;
  for (auto version = then.rbegin(); version != then.rend(); ++version) {
    auto& group = now.contains(version->first) ? outcome.standing : outcome.withdrawn;
    group.push_back(version->second);
  }
  return outcome;
}

bool IsHeld(const Catalog& catalog, const ModelKey& key, VersionSequence version) {
  const CatalogModel* model = FindModel(catalog, key);
  return model != nullptr && std::any_of(model->versions.begin(), model->versions.end(),
                                         [&](const CatalogVersion& listed) {
                                           return listed.info.sequence == version &&
                                                  !listed.replicas.empty();
                                         });
}

std::string TextOf(const RollBackOutcome& outcome, const ModelKey& key, const VersionInfo& to) {
  if (!outcome.standing.empty()) {
    return absl::StrCat("nothing was done: a roll-back of ", key.ToString(), " to version ",
                        to.ToString(), " ran under this key before; ",
                        absl::StrJoin(outcome.standing, ", "),
                        " came later and stays: another --key withdraws it");
  }
  if (outcome.withdrawn.empty()) {
    return absl::StrCat("nothing was withdrawn: ", key.ToString(), " is back at version ",
                        to.ToString(), " already, and no later one is there");
  }
  return absl::StrCat(key.ToString(), " is back at version ", to.ToString(),
                      "; withdrawn: ", absl::StrJoin(outcome.withdrawn, ", "));
}

}  // namespace th
