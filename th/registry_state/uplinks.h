// The bytes that workers have still to send: the load by which th/scheduler compares sources.
#ifndef TH_REGISTRY_STATE_UPLINKS_H_
#define TH_REGISTRY_STATE_UPLINKS_H_

#include <cstdint>

#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// The bytes that the worker's uplink has still to send: over those who fill from any of its
// buffers, what each lacks by its last progress, divided among its sources. Who reads within the
// worker uses no uplink. Who is silent, has lost its stream or was reported as a source takes
// nothing: it may never go on, and has its sources only until that is known. Nor does who has a
// slower link than `reader`, for whom this is asked: it would make way. O(its readers).
uint64_t OutstandingBytes(const Turn& turn, const Worker& worker, const Buffer& reader);

// The number of readers of `source` that would not make way for `reader`.
uint32_t ReadersThatKeepTheirPlace(const Buffer& source, const Buffer& reader);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_UPLINKS_H_
