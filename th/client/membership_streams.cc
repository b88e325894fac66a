// Buffers of streaming readers: what they receive passes through a ring and stays nowhere.
#include <algorithm>
#include <memory>
#include <utility>

#include "th/client/membership.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th {

StreamTicket Membership::BeginStream() {
  StreamTicket ticket;
  Enter([&](WorkerSession& session, absl::Time now) { ticket = session.BeginStream(now); });
  return ticket;
}

absl::StatusOr<Membership::BufferPtr> Membership::RegisterStream(
    const StreamTicket& ticket, std::string form, std::shared_ptr<const ShardLayout> layout,
    std::shared_ptr<SegmentRing> ring, absl::Duration timeout) {
  TH_RETURN_IF_ERROR(CanWait());
  BufferPtr buffer;
  {
    absl::MutexLock lock(&mu_);
    TH_ASSIGN_OR_RETURN(
        const BufferId id,
        session_.RegisterStreamBuffer(ticket, form, layout, ring->wanted(), MonotonicNow()));
    buffer = std::make_shared<LocalBuffer>(
        LocalBuffer::Spec{.id = id,
                          .form = std::move(form),
                          .binding_options = {},
                          .binding = {.layout = std::move(layout), .storages = {}},
                          .ring = std::move(ring)});
    buffers_[id] = buffer;
  }
  Wake();
  TH_RETURN_IF_ERROR(
      AwaitReady(*buffer, "of a streaming reader", std::min(timeout, kRegisterTimeout)));
  return buffer;
}

void Membership::FailStream(const StreamTicket& ticket, std::string form, const absl::Status& why) {
  Enter([&](WorkerSession& session, absl::Time now) {
    session.FailStream(ticket, std::move(form), why, now);
  });
}

void Membership::EndStream(LocalBuffer& buffer, const absl::Status& why) {
  Enter([&](WorkerSession& session, absl::Time now) { session.EndStream(buffer.id(), why, now); });
  Withdraw(buffer);
}

}  // namespace th
