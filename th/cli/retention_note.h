// What somebody who pins or retains may have mistaken. Pure.
#ifndef TH_CLI_RETENTION_NOTE_H_
#define TH_CLI_RETENTION_NOTE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "th/protocol/catalog.h"
#include "th/weights/identifiers.h"
#include "th/weights/version.h"

namespace th {

// Of a policy for `form` (empty: every form): that the model has no version yet, or nobody holds
// one in the form. Empty: there is nothing to say.
std::string NoteOnPolicy(const Catalog& catalog, const ModelKey& key, absl::string_view form);

// Of a pin of the version in `form` (empty: every form): that nobody holds it so. Empty: somebody
// does.
std::string NoteOnPin(const Catalog& catalog, const ModelKey& key, VersionSequence version,
                      absl::string_view form);

}  // namespace th

#endif  // TH_CLI_RETENTION_NOTE_H_
