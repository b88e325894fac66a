#include "th/cli/retention_note.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

// Also those that are on their way to somebody.
void AddForms(const CatalogVersion& version, std::set<std::string>* forms) {
  for (const CatalogReplica& replica : version.replicas) forms->insert(replica.form);
}

std::string Listed(const std::set<std::string>& forms) {
  return forms.empty() ? "none" : absl::StrJoin(forms, ", ");
}

}  // namespace

std::string NoteOnPolicy(const Catalog& catalog, const ModelKey& key, absl::string_view form) {
  const CatalogModel* model = FindModel(catalog, key);
  if (model == nullptr || model->versions.empty()) return "it has no version yet";
  std::set<std::string> forms;
  for (const CatalogVersion& version : model->versions) AddForms(version, &forms);
  if (form.empty() || forms.contains(std::string(form))) return "";
  return absl::StrCat("nobody holds a version in form ", form, " (held: ", Listed(forms), ")");
}

std::string NoteOnPin(const Catalog& catalog, const ModelKey& key, VersionSequence version,
                      absl::string_view form) {
  std::set<std::string> forms;
  if (const CatalogModel* model = FindModel(catalog, key); model != nullptr) {
    for (const CatalogVersion& listed : model->versions) {
      if (listed.info.sequence == version) AddForms(listed, &forms);
    }
  }
  if (forms.empty()) return "nobody holds it: a pin brings nothing back";
  if (form.empty() || forms.contains(std::string(form))) return "";
  return absl::StrCat("nobody holds it in form ", form, " (held: ", Listed(forms), ")");
}

}  // namespace th
