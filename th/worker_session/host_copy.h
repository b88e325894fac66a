// Copies of versions in host memory. Each is an ordinary buffer of this worker, filled by an
// ordinary update of its whole group, and a source from its first segment on. There are two kinds:
// - A kept copy (offload.h) is made before an operation takes the version away, or to seed the
//   site. It is filled once; its buffer goes with it.
// - A staged copy (staging.h) receives what its original is to move to. Its buffer is registered by
//   the first Stage and kept as long as its original, so the Stages of all ranks are numbered
//   alike, and a rank that comes late hears their saved results.
//
// Beside its phase each copy has memory, or none. Its update drains and fills only where there is
// memory. A kept copy asks for it first and then begins its update, so that the ranks which have
// none end it; a staged one asks when there is something to put into it.
//
//   from       on                                                       to
//   (none)     a kept copy is wanted: AllocateOffload                   idle
//   (none)     the first Stage                                          filling
//   idle       kept: its memory is there, or could not be made          filling
//   idle       kept: the same, and nobody waits for it any more         over
//   idle       Stage                                                    filling
//   idle       its memory is free, and it is a kept copy or its         (removed)
//              original is unregistered; what waits for it fails
//   filling    staged: a version is resolved: AllocateOffload           filling
//   filling    staged: what was held before is taken back before the    filling
//              next version is resolved: FreeOffload
//   filling    the group holds it: what waits for it goes on            held
//   filling    not available, an error, discarded, nothing touched:     held
//              what was staged before is staged still
//   filling    already there, not available, an error, discarded,       over
//              given up
//   held       Stage                                                    filling
//   held       released or taken back by the server, applied,           releasing
//              discarded; staged: BufferReset
//   over       at once; staged: BufferReset                             releasing
//   releasing  Stage                                                    filling
//   releasing  drained, and its memory is not being made: FreeOffload   idle
//              where it has memory
#ifndef TH_WORKER_SESSION_HOST_COPY_H_
#define TH_WORKER_SESSION_HOST_COPY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/worker_session/session_state.h"

namespace th::session {

// "staged copy filling, memory asked".
std::string DescribeCopy(const HostCopy& copy);

// The driver's answer to AllocateOffload. An answer that was not asked for is ignored.
void NoteCopyAllocated(State& state, BufferId copy, const absl::Status& status, absl::Time now);

// Begins the kept copies that are wanted, then takes every step that each copy allows now, those
// that remove buffers among them: after every event, outside of any walk over the buffers.
void PumpHostCopies(State& state, absl::Time now);

}  // namespace th::session

#endif  // TH_WORKER_SESSION_HOST_COPY_H_
