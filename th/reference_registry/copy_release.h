// When copies in host memory may go: offload buffers are released once another replica stays, or
// nothing retains their version; those that seed a site once the site needs them no more either.
#ifndef TH_REFERENCE_REGISTRY_COPY_RELEASE_H_
#define TH_REFERENCE_REGISTRY_COPY_RELEASE_H_

#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Releases copies of the model that nothing needs any more, and has operations that wait for room
// looked at again. At the end of a turn that changed who stays, what is retained, what a site has
// or how much room there is.
void ReviewOffloads(Turn& turn, Model& model);
// Says it again to a rank that may not have heard it.
void RepeatRelease(Turn& turn, const Buffer& buffer);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_COPY_RELEASE_H_
