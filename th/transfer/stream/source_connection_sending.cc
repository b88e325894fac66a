// The side of a source's connection that sends, and what it waits for before it can.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/source_connection.h"

namespace th::stream {
namespace {

// Limits the bytes that one connection sends, or reads to sum them, before its loop turns to the
// others.
constexpr uint64_t kBytesPerTurn = uint64_t{4} << 20;
// Limits the sums that one call sends: the list of most shards (DefaultSegmentBytes).
constexpr uint64_t kChecksumBytesPerCall = uint64_t{96} << 10;

}  // namespace

// Sends until there is nothing to send, the socket or the uplink is full, or the turn is over.
void SourceConnection::Pump() {
  if (resting_) return;
  if (retrying_ || wait_ != 0) {
    // Keep-alives still go out at a frame boundary, past the uplink's cap: they are what tells the
    // reader that we live.
    if (!outbox_.empty() || words_.empty()) return;
  }
  uint64_t budget = kBytesPerTurn;
  while (!closed_) {
    if (outbox_.empty()) FillOutbox(&budget);
    if (outbox_.empty()) return WatchFor(EPOLLIN | EPOLLRDHUP);
    if (!SendSome(&budget)) return;
    if (outbox_.empty() && session_.ending() && words_.empty()) {
      // No close yet: that could throw the reason away before the reader has read it.
      shutdown(socket_.fd(), SHUT_WR);
      return WatchFor(EPOLLIN | EPOLLRDHUP);
    }
  }
}

// Sends once. False when the connection has to wait, or is closed.
bool SourceConnection::SendSome(uint64_t* budget) {
  const absl::Time now = MonotonicNow();
  if (*budget == 0) {
    resting_ = true;
    loop_->Post(IfAlive(weak_from_this(), &SourceConnection::HandleTurn));
    return false;
  }
  const uint64_t allowed = TakeUplink(now);
  if (allowed == 0) return false;
  const Outbox::Sent sent = outbox_.Send(socket_.fd(), allowed);
  if (PaysUplink() && sent.bytes < allowed) table_->RefundUplink(allowed - sent.bytes);
  if (sent.error != 0 && sent.error != EAGAIN) {
    CloseNow();
    return false;
  }
  *budget -= std::min(*budget, sent.bytes);
  if (sent.bytes > 0) NoteSent(sent.bytes, now);
  if (sent.bytes == allowed || outbox_.empty()) return true;
  // Less than offered: the socket is full, and trying again would only hear so.
  WatchFor(EPOLLIN | EPOLLRDHUP | EPOLLOUT);
  return false;
}

void SourceConnection::HandleTurn() {
  resting_ = false;
  Act();
}

void SourceConnection::NoteSent(uint64_t bytes, absl::Time now) {
  session_.HandleSent(AllLeft(), now);
  stall_.HandleTaken();
  if (payload_in_outbox_ == 0) return;
  const uint64_t payload = std::min(payload_in_outbox_, bytes);
  payload_in_outbox_ = outbox_.empty() ? 0 : payload_in_outbox_ - payload;
  table_->CountSent(*transfer_, payload, now);
}

// Returns how much may go out now. 0: the uplink is exhausted and a timer will pump.
uint64_t SourceConnection::TakeUplink(absl::Time now) {
  if (!PaysUplink()) return outbox_.bytes_left();
  const UplinkBucket::Grant grant = table_->TakeUplink(*transfer_, outbox_.bytes_left(), now);
  if (grant.bytes > 0) return grant.bytes;
  retrying_ = true;
  WatchFor(EPOLLIN | EPOLLRDHUP);
  loop_->RunAt(grant.retry_at, IfAlive(weak_from_this(), &SourceConnection::HandleRetry));
  return 0;
}

void SourceConnection::HandleRetry() {
  retrying_ = false;
  Act();
}

void SourceConnection::FillOutbox(uint64_t* budget) {
  payload_in_outbox_ = 0;
  while (!words_.empty()) {
    outbox_.AddControl(std::move(words_.front()));
    words_.pop_front();
  }
  // Words go alone, so that they never wait for the uplink.
  if (!outbox_.empty() || wait_ != 0) return;
  bool checksums = false;
  while (outbox_.bytes_left() < kChecksumBytesPerCall && AppendChecksums(budget)) checksums = true;
  if (checksums || wait_ != 0) return;
  // StageAhead looks through all open requests, so it runs once a call and not for each segment.
  if (!session_.requests().empty() && MayLocateMore()) StageAhead();
  while (!outbox_.full() && AppendNext(budget) && *budget > 0) continue;
}

// Appends the next sums, as words. Those that nobody has taken yet are taken while there is nothing
// else to send, which costs the turn what may be read for them: a list of an unsealed shard may be
// many gigabytes of it. False when there are none to be sent now.
bool SourceConnection::AppendChecksums(uint64_t* budget) {
  if (session_.checksums_requested().empty()) return false;
  SegmentStore& store = *transfer_->store;
  if (store.closed()) {
    session_.HandleBufferClosed();
    return false;
  }
  const bool idle = outbox_.empty() && !store.FirstReady(session_.requests()).has_value();
  const auto next = session_.PollChecksums([&store, idle, budget](SegmentRange asked) {
    std::vector<SegmentChecksum> known =
        store.ChecksumsOf(asked, kMaxChecksumsInFrame, /*compute=*/false);
    if (!known.empty() || !idle) return known;
    *budget -= std::min(*budget, kBytesChecksummedAtOnce);
    return store.ChecksumsOf(asked, kMaxChecksumsInFrame, /*compute=*/true);
  });
  if (!next.has_value()) {
    if (idle) WaitForSegments();
    return false;
  }
  outbox_.AddControl(Encode(Checksums{
      .first = next->first, .generation = store.generation(), .checksums = next->checksums}));
  return true;
}

// Appends the next segment. False when there is none to be sent now. A sum that has to be taken for
// one that the reader reads itself costs the turn its bytes: the socket, which bounds those that
// are sent, does not bound these.
bool SourceConnection::AppendNext(uint64_t* budget) {
  if (session_.requests().empty() || !MayLocateMore()) return false;
  SegmentStore& store = *transfer_->store;
  if (store.closed()) {
    session_.HandleBufferClosed();
    return false;
  }
  const uint64_t not_located = not_located_.count();
  Places places;
  const std::optional<SegmentIndex> next = session_.PollSegment(
      [this, &places](SegmentIndex segment) { return MayLeave(segment, &places); });
  // MayLeave has found segments that the reader cannot read in place: they need a copy.
  if (not_located_.count() > not_located) StageAhead();
  if (!next.has_value()) {
    // The copies that are under way call back.
    if (outbox_.empty() && staging_->empty()) WaitForSegments();
    return false;
  }
  if (staging_->IsStaged(*next)) {
    SendStaged(*next);
    return true;
  }
  const uint64_t bytes = store.layout().SegmentLength(*next);
  const bool checksummed = store.IsChecksummed(*next);
  if (served_ != nullptr && !places.has_value()) places = PlacesOf(*next);
  if (places.has_value()) {
    Locate(*next, *std::move(places));
    if (!checksummed) *budget -= std::min(*budget, bytes);
    return true;
  }
  if (store.PlaceOf(*next) != SegmentStore::Place::kHost) {
    session_.HandleBroken("memory of the buffer is not what it was registered as any more");
    return false;
  }
  outbox_.AddSegment({.segment = *next,
                      .bytes = static_cast<uint32_t>(bytes),
                      .checksum = store.ChecksumOf(*next),
                      .generation = store.generation()},
                     store);
  payload_in_outbox_ += bytes;
  return true;
}

// True of a segment that is not all in host memory, unless the reader reads it where it lies.
bool SourceConnection::LeavesFromACopy(SegmentIndex segment) const {
  const SegmentStore& store = *transfer_->store;
  if (store.PlaceOf(segment) == SegmentStore::Place::kHost) return false;
  return served_ == nullptr || !served_->serves_devices() || not_located_.Contains(segment);
}

// True once the segment can go out: it is in host memory, its copy is there, or the reader can read
// it in device memory, at `places` then.
bool SourceConnection::MayLeave(SegmentIndex segment, Places* places) {
  const SegmentStore& store = *transfer_->store;
  places->reset();
  if (store.ReadinessOf(segment) != SegmentStore::Readiness::kReady) return false;
  if (store.PlaceOf(segment) == SegmentStore::Place::kHost || staging_->IsStaged(segment))
    return true;
  if (LeavesFromACopy(segment) || !store.IsChecksummed(segment)) return false;
  *places = PlacesOf(segment);
  if (places->has_value()) return true;
  not_located_.Add(segment);
  return false;
}

void SourceConnection::StageAhead() {
  const SegmentStore& store = *transfer_->store;
  if (store.device() == nullptr || store.closed()) return;
  staging_->StageAhead(transfer_->store, session_.requests(),
                       [this](SegmentIndex segment) { return LeavesFromACopy(segment); });
}

void SourceConnection::HandleStaging(const absl::Status& status) {
  if (closed_) return;
  if (!status.ok()) session_.HandleBroken(std::string(status.message()));
  Act();
}

void SourceConnection::SendStaged(SegmentIndex segment) {
  const StagedSegment staged = staging_->Take(segment);
  // The generation is the one that the bytes were copied in, whatever the store's is by now.
  outbox_.AddSegment({.segment = segment,
                      .bytes = static_cast<uint32_t>(staged.bytes.size()),
                      .checksum = staged.copied.checksum,
                      .generation = staged.copied.generation},
                     staged.bytes, staged.slot);
  payload_in_outbox_ += staged.bytes.size();
}

bool SourceConnection::MayLocateMore() const {
  return served_ == nullptr || located_.HasRoom(served_->window());
}

// Returns where the reader finds the segment's bytes. Nullopt: it is in too many pieces for that,
// or the reader cannot read one of them.
SourceConnection::Places SourceConnection::PlacesOf(SegmentIndex segment) {
  std::vector<iovec> pieces;
  transfer_->store->AppendPieces(segment, &pieces);
  if (pieces.size() > kMaxLocatedPieces) return std::nullopt;
  std::vector<Located::Piece> places;
  places.reserve(pieces.size());
  for (const iovec& piece : pieces) {
    const std::optional<uint32_t> key = served_->KeyOf(piece);
    if (!key.has_value()) return std::nullopt;
    places.push_back({.address = reinterpret_cast<uintptr_t>(piece.iov_base),
                      .bytes = static_cast<uint32_t>(piece.iov_len),
                      .key = *key});
  }
  return places;
}

// Tells the reader where the segment lies.
void SourceConnection::Locate(SegmentIndex segment, std::vector<Located::Piece> places) {
  SegmentStore& store = *transfer_->store;
  const Located located{.segment = segment,
                        .checksum = store.ChecksumOf(segment),
                        .generation = store.generation(),
                        .pieces = std::move(places)};
  outbox_.AddControl(Encode(located));
  located_.Add(segment, store.layout().SegmentLength(segment));
}

void SourceConnection::WaitForSegments() {
  const uint64_t turn = ++wait_count_;
  const auto wake = [loop = loop_, weak = weak_from_this(), turn] {
    loop->Post([weak, turn] {
      const auto self = weak.lock();
      if (self == nullptr || self->wait_count_ != turn) return;
      self->wait_ = 0;
      self->Act();
    });
  };
  const SegmentRange checksums = session_.checksums_requested();
  const auto listed = checksums.empty() ? std::nullopt : std::optional(checksums.begin);
  wait_ = transfer_->store->NotifyWhenReady(session_.requests(), wake, listed);
  if (wait_ == 0) wake();  // one became ready in between
}

void SourceConnection::StopWaiting() {
  if (wait_ == 0) return;
  transfer_->store->CancelNotify(std::exchange(wait_, 0));
  ++wait_count_;
}

void SourceConnection::WatchFor(uint32_t events) {
  if (closed_ || events == events_) return;
  events_ = events;
  loop_->Rewatch(socket_.fd(), events);
}

}  // namespace th::stream
