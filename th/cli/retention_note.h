// Notes for somebody who pins or retains and may be mistaken. Pure.
#ifndef TH_CLI_RETENTION_NOTE_H_
#define TH_CLI_RETENTION_NOTE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// The note on a policy for `form` (empty: every form): the model has no version yet, or nobody
// holds one in the form. Empty when there is nothing to say.
std::string NoteOnPolicy(const Catalog& catalog, const ModelKey& key, absl::string_view form);

// The note on a pin of the version in `form` (empty: every form): nobody holds it so. Empty when
// somebody does.
std::string NoteOnPin(const Catalog& catalog, const ModelKey& key, VersionSequence version,
                      absl::string_view form);

}  // namespace th

#endif  // TH_CLI_RETENTION_NOTE_H_
