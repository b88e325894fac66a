// Whether what is published under a label can be the version that has the label already. Contents
// are compared by the roots of their shards (AgreeOnRoot), so there must be checksums.
#ifndef TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_
#define TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/reference_registry/state.h"
#include "th/weights/digest.h"

namespace th::registry {

// Whether the replica's publication under the version's label may be this version. Otherwise it is
// another one, because the content that the version had in this form is lost and cannot be
// compared: its publisher went before its checksums were known; it has none, and nobody has all of
// it; or nobody has announced the version since the restart.
bool MayBePublishedAgain(const RegistryState& state, const Version& version,
                         const Replica& replica);

// Whether shards with this layout have no checksums.
bool LacksSums(const RegistryState& state, const Digest& layout);

// ALREADY_EXISTS with "label ... belongs to ...", why the content cannot be that version's, and
// what to do.
absl::Status LabelInUse(const Version& version, absl::string_view difference);

// Refuses (ALREADY_EXISTS) a further publisher without checksums while somebody holds the version
// in the buffer's form: readers would mix the bytes of both.
absl::Status CanBeCompared(const RegistryState& state, const Version& version,
                           const Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_
