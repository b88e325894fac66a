// Decides whether content published under a label in use is the version that has the label.
// Contents are compared by the roots of their shards (TakeRootReport).
#ifndef TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_
#define TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/registry_state/state.h"
#include "th/weights/digest.h"

namespace th::registry {

// True when the replica's publication under the version's label may be this version; its shards are
// then compared by their roots. False makes it another version: nobody has announced this one since
// the restart, or its content cannot be compared (IsIncomparable) and the replica does not repeat
// the publication that made it.
bool MayBePublishedAgain(const RegistryState& state, const Version& version,
                         const Replica& replica);

// ALREADY_EXISTS while a rank may come back to the version's content (Buffer::displaced): another
// version would take the label from it. To be asked where MayBePublishedAgain is false.
absl::Status CheckNotDisplaced(const Version& version);

// True when the layout is known and has no checksums.
bool LacksChecksums(const RegistryState& state, const Digest& layout);

// ALREADY_EXISTS with "label ... belongs to ...", why the content cannot be that version's, and
// what to do.
absl::Status LabelInUseError(const Version& version, absl::string_view difference);

// ALREADY_EXISTS when the buffer has no checksums and every shard of its form has a holder that
// has, or is about to have, all of it: readers would mix the bytes of two contents.
absl::Status CheckComparable(const RegistryState& state, const Version& version,
                             const Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_PUBLISHED_AGAIN_H_
