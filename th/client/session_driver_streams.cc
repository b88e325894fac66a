// Buffers of streaming readers: what they receive passes through a ring and stays nowhere, or is
// not received at all, but used where it lies.
#include <algorithm>
#include <memory>
#include <utility>

#include "th/client/session_driver.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {

StreamTicket SessionDriver::BeginStream() { return Handle(event::BeginStream{}).ticket; }

absl::StatusOr<SessionDriver::BufferPtr> SessionDriver::RegisterStream(
    const StreamTicket& ticket, std::string form, std::shared_ptr<const ShardLayout> layout,
    StreamInto into, absl::Duration timeout) {
  TH_RETURN_IF_ERROR(CanWait());
  BufferPtr buffer;
  {
    absl::MutexLock lock(&mu_);
    const SessionAnswer answer = session_.Handle(
        event::RegisterStreamBuffer{ticket, form, layout,
                                    into.ring == nullptr ? SegmentSet() : into.ring->wanted()},
        MonotonicNow());
    TH_RETURN_IF_ERROR(answer.status);
    buffer = std::make_shared<LocalBuffer>(
        LocalBuffer::Spec{.id = answer.buffer,
                          .form = std::move(form),
                          .binding_options = {},
                          .binding = {.layout = std::move(layout), .storages = {}},
                          .ring = std::move(into.ring),
                          .mapping = std::move(into.mapping)});
    buffers_[answer.buffer] = buffer;
  }
  buffer->AttachMemory(data_plane_);
  SchedulePump();
  // Alone in its group it asks for its update at once: that says what became of the registration.
  // Other ranks must hear of a buffer that was refused (FailStream).
  if (options_.ranks > 1) {
    TH_RETURN_IF_ERROR(
        AwaitReady(*buffer, "of a streaming reader", std::min(timeout, kRegisterTimeout)));
  }
  return buffer;
}

void SessionDriver::FailStream(const StreamTicket& ticket, std::string form,
                               const absl::Status& why) {
  Handle(event::FailStream{ticket, std::move(form), why});
}

void SessionDriver::EndStream(LocalBuffer& buffer, const absl::Status& why) {
  Handle(event::EndStream{buffer.id(), why});
  Withdraw(buffer);
}

}  // namespace th
