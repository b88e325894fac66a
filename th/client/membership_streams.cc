// Buffers of streaming readers: what they receive passes through a ring and stays nowhere.
#include <memory>
#include <utility>

#include "th/client/membership.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th {

absl::StatusOr<Membership::BufferPtr> Membership::RegisterStream(
    std::string form, std::shared_ptr<const ShardLayout> layout,
    std::shared_ptr<SegmentRing> ring) {
  TH_RETURN_IF_ERROR(CanWait());
  BufferPtr buffer;
  {
    absl::MutexLock lock(&mu_);
    TH_ASSIGN_OR_RETURN(const BufferId id,
                        session_.RegisterStreamBuffer(form, layout, MonotonicNow()));
    buffer = std::make_shared<LocalBuffer>(
        LocalBuffer::Spec{.id = id,
                          .form = std::move(form),
                          .binding_options = {},
                          .binding = {.layout = std::move(layout), .storages = {}},
                          .ring = std::move(ring)});
    buffers_[id] = buffer;
  }
  Wake();
  TH_RETURN_IF_ERROR(AwaitReady(*buffer, "of a streaming reader"));
  return buffer;
}

}  // namespace th
