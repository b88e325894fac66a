// PullConnection's reads out of the source's memory, and the copies that this process makes for it.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "th/status/status_macros.h"
#include "th/transfer/hung_device.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/pull_connection.h"

namespace th::stream {
namespace {

// Limits the bytes that are read of the source's memory before the control block is compared and
// the source is told: both once for several segments. More would make the source wait for its
// window of located segments (ServedMemory::Window), and what landed leave the cache before it is
// summed.
constexpr size_t kBytesUnfollowed = size_t{1} << 20;
// A tick that is later than this means that this process did not run.
constexpr absl::Duration kLateTick = absl::Milliseconds(100);
}  // namespace

absl::Status PullConnection::StartRead(const Located& located) {
  if (!reads_.has_value()) {
    return absl::InvalidArgumentError("Located before it was admitted, or where no memory is read");
  }
  uint64_t bytes = 0;
  for (const Located::Piece& piece : located.pieces) bytes += piece.bytes;
  const SegmentHeader header{.segment = located.segment,
                             .bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX)),
                             .checksum = located.checksum,
                             .generation = located.generation};
  TH_RETURN_IF_ERROR(TakeSegment(header));
  if (header.generation != generation_) {
    ShutForGeneration(header.generation);
    return absl::OkStatus();
  }
  RemoteMemory* const writer = memory_->writes_devices() ? memory_.get() : nullptr;
  std::vector<iovec> into;
  if (WantsSegment(header, writer, &into)) {
    bytes_read_ += header.bytes;
    bytes_unfollowed_ += header.bytes;
    reads_->Start(header, located.pieces, std::move(into), heard_at_);
    NoteAlive(heard_at_);  // it has just said where the segment lies
    WatchCopies();
  } else {
    reads_->Skip(header);
  }
  AnswerSkipped();
  if (memory_ == nullptr || memory_->copies_together()) return absl::OkStatus();
  if (bytes_unfollowed_ >= kBytesUnfollowed) FollowReads();
  return absl::OkStatus();
}

// Takes what has become of the source's memory: it is ready, reads have ended, or it is lost. Once
// a turn, and for each kBytesUnfollowed that were started in it.
void PullConnection::FollowReads() {
  if (memory_ == nullptr) return;
  if (state_ == State::kClosed) return FollowEnd();
  bytes_unfollowed_ = 0;
  while (state_ == State::kOpening || state_ == State::kOpen) {
    const absl::StatusOr<std::optional<RemoteMemory::Read>> read = memory_->Poll();
    if (!read.ok()) return LoseMemory(std::string(read.status().message()));
    if (!read->has_value()) break;
    FinishRead(**read);
  }
  if (state_ == State::kOpen) Flush();
  if (state_ == State::kOpen && memory_ != nullptr) WatchCopies();
  if (last_word_.has_value() && !ReadsAreUnderWay()) return ShutAsSaid();
  if (state_ != State::kOpening || asked_to_open_ || !memory_->ready()) return;
  asked_to_open_ = true;
  Send(Encode(setup_.open));
}

// The path to the memory has broken, which is no failure of the source, unless it has just gone:
// then its memory goes with its socket, and either may be seen first.
void PullConnection::LoseMemory(std::string detail) {
  if (last_word_.has_value()) return ShutAsSaid();
  pollfd socket{.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
  if (poll(&socket, 1, 0) > 0) return Shut(SourceFailure::kClosed, std::move(detail));
  Shut(SourceFailure::kConnect, std::move(detail),
       memory_->HasAnotherWay() ? ConnectionEnd::kWayLost : ConnectionEnd::kMemoryLost);
}

void PullConnection::FinishRead(const RemoteMemory::Read& read) {
  using Cause = LocatedReads::Failure::Cause;
  CountPackingOverhead();
  auto ended = reads_->Finish(read, MonotonicNow());
  if (auto* failure = std::get_if<LocatedReads::Failure>(&ended)) {
    if (failure->cause == Cause::kMemoryLost) return LoseMemory(std::move(failure->detail));
    const bool changed = failure->cause == Cause::kGeneration;
    return Shut(changed ? SourceFailure::kGenerationChanged : SourceFailure::kClosed,
                std::move(failure->detail));
  }
  AnswerRead(std::get<LocatedReads::Answer>(ended));
  AnswerSkipped();
}

void PullConnection::CountPackingOverhead() {
  const uint64_t bytes = memory_->packing_overhead_bytes();
  if (bytes == packing_overhead_reported_) return;
  *setup_.packing_overhead_bytes += bytes - std::exchange(packing_overhead_reported_, bytes);
}

void PullConnection::AnswerRead(const LocatedReads::Answer& answer) {
  owner_->OnConnectionSegment(setup_.number, answer.segment, answer.landed, answer.computed);
  if (state_ != State::kOpen) return;
  Queue(Encode(Landed{.segment = answer.segment.segment, .bytes = answer.segment.bytes}));
}

void PullConnection::AnswerSkipped() {
  while (state_ == State::kOpen) {
    const std::optional<LocatedReads::Answer> skipped = reads_->TakeSkipped();
    if (!skipped.has_value()) return;
    AnswerRead(*skipped);
  }
}

// Sources say nothing while what they have located is read.
void PullConnection::WatchCopies() {
  if (watching_copies_ || !memory_->copying()) return;
  watching_copies_ = true;
  const absl::Time due = MonotonicNow() + kAliveInterval;
  loop_->RunAt(due, [weak = weak_from_this(), due] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->watching_copies_ = false;
    self->ForgivePause(due, MonotonicNow());
    self->HandleCopyTick();
  });
}

void PullConnection::HandleCopyTick() {
  if (state_ != State::kOpen || !memory_->copying()) return;
  const absl::Time now = MonotonicNow();
  if (!OwnCopiesExcuseSilence(now)) {
    return owner_->OnConnectionDeviceHangs(HungDevice(
        memory_->devices(), "copies or sums for the buffer", setup_.limits.own_copy_timeout));
  }
  NoteAlive(now);
  WatchCopies();
}

void PullConnection::ForgivePause(absl::Time due, absl::Time now) {
  if (reads_.has_value() && now - due > kLateTick) reads_->HandlePause(now - due);
}

bool PullConnection::OwnCopiesExcuseSilence(absl::Time now) const {
  return reads_.has_value() && now - reads_->moved_at() < setup_.limits.own_copy_timeout;
}

}  // namespace th::stream
