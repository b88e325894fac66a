#include "th/transfer/stream/stream_pull.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"

namespace th::stream {

PullState::PullState(PullTarget target, PullSink* sink, TransportLimits limits, PullNonce nonce,
                     std::shared_ptr<const Medium> medium,
                     std::vector<std::shared_ptr<EventLoop>> loops, size_t first_loop,
                     std::shared_ptr<std::atomic<uint64_t>> bytes_received)
    : target_(std::move(target)),
      sink_(sink),
      limits_(std::move(limits)),
      nonce_(nonce),
      medium_(std::move(medium)),
      loops_(std::move(loops)),
      first_loop_(first_loop),
      peer_(absl::StrCat(medium_->name(), " ", target_.endpoint.address)),
      address_(medium_->AddressOf(target_.endpoint)),
      bytes_received_(std::move(bytes_received)) {}

void PullState::Start() {
  if (address_.ok()) {
    absl::MutexLock lock(&mu_);
    AddLane(LaneRole::kFirst);
    return;
  }
  // Told on a loop: never inline.
  loops_[first_loop_ % loops_.size()]->Post(
      [self = shared_from_this(), why = std::string(address_.status().message())] {
        self->Close(SourceFailure::kConnect, why);
        self->OnConnectionClosed(0, SourceFailure::kConnect, why, ConnectionEnd::kBroken);
      });
}

void PullState::AddLane(LaneRole role) {
  const auto number = static_cast<uint32_t>(lanes_.size());
  PullConnection::Setup setup{.number = number,
                              .takes_over = role == LaneRole::kTakesOver,
                              .address = *address_,
                              .open = {.joins = role == LaneRole::kJoins,
                                       .nonce = nonce_,
                                       .capability = target_.capability,
                                       .generation = target_.generation,
                                       .layout = target_.layout->digest()},
                              .medium = medium_,
                              .layout = target_.layout,
                              .into = target_.into,
                              .begin_device_write = target_.begin_device_write,
                              .extra_bytes = target_.extra_bytes,
                              .cut_bytes = target_.cut_bytes,
                              .packing_overhead_bytes = target_.packing_overhead_bytes,
                              .limits = limits_};
  const auto& loop = loops_[(first_loop_ + number) % loops_.size()];
  auto connection = std::make_shared<PullConnection>(std::move(setup), loop, shared_from_this());
  lanes_.push_back({.connection = connection});
  // A loop that has ended (the transport is going) takes no connection.
  if (!loop->Post([connection] { connection->Start(); })) lanes_.back().connection = nullptr;
}

// ---- asking

void PullState::Ask(SegmentRange range) {
  if (range.empty()) return;
  absl::MutexLock lock(&mu_);
  if (failure_.has_value()) return;
  if (!generation_.has_value()) {
    early_asks_.push_back(range);
  } else {
    AskLocked(range);
  }
}

void PullState::AskChecksums() {
  absl::MutexLock lock(&mu_);
  if (failure_.has_value()) return;
  checksums_outstanding_ = target_.layout->segment_count();
  AskChecksumsLocked();
}

// Asks the first connection for the list of sums, if it can be asked.
void PullState::AskChecksumsLocked() {
  if (checksums_outstanding_ == 0 || checksums_from_.has_value() || failure_.has_value()) return;
  const uint64_t count = target_.layout->segment_count();
  const SegmentRange range{SegmentIndex(count - checksums_outstanding_), SegmentIndex(count)};
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const auto number = static_cast<uint32_t>((first_ + i) % lanes_.size());
    const Lane& lane = lanes_[number];
    if (!lane.CanBeAsked()) continue;
    checksums_from_ = number;
    lane.connection->loop().Post(
        [connection = lane.connection, range] { connection->SendAskChecksums(range); });
    return;
  }
}

void PullState::AskMapping() {
  absl::MutexLock lock(&mu_);
  if (failure_.has_value() || lanes_.empty() || lanes_[first_].connection == nullptr) return;
  lanes_[first_].connection->loop().Post(
      [connection = lanes_[first_].connection] { connection->SendAskMapping(); });
}

// Looks among those with less than `max_requests` requests open. Null: there is none.
PullState::Lane* PullState::LaneThatOwesLeast(size_t max_requests) {
  Lane* least = nullptr;
  for (Lane& lane : lanes_) {
    if (!lane.CanBeAsked() || lane.outstanding.size() >= max_requests) continue;
    if (least == nullptr || lane.outstanding.segments() < least->outstanding.segments()) {
      least = &lane;
    }
  }
  return least;
}

void PullState::AskOf(Lane& lane, SegmentRange range) {
  lane.outstanding.Push(range);
  lane.was_used = true;
  lane.connection->loop().Post(
      [connection = lane.connection, range] { connection->SendAsk(range); });
}

void PullState::AskLocked(SegmentRange range) {
  Lane* const least = LaneThatOwesLeast(std::numeric_limits<size_t>::max());
  if (least != nullptr) return AskOf(*least, range);
  moved_.Add(range);  // another connection may be admitted, else the pull is closing
}

// The segments that one connection owed may be in many pieces, each of which is a request: those
// wait here for others to be answered. The reader itself asks for no more than the other half of
// what a source takes a connection (NoSourceIsAskedForMoreThanSourcesTake in fill_test.cc).
void PullState::AskMoved() {
  const size_t max_requests = std::max<size_t>(limits_.max_requests_queued / 2, 1);
  while (!moved_.empty() && !failure_.has_value()) {
    Lane* const least = LaneThatOwesLeast(max_requests);
    if (least == nullptr) return;
    const SegmentRange range = moved_.ranges().front();
    moved_.Remove(range);
    AskOf(*least, range);
  }
}

// ---- what connections tell

void PullState::OnConnectionAdmitted(uint32_t connection, BufferGeneration generation,
                                     bool lists_checksums) {
  if (!NoteAdmitted(connection, generation)) return;
  AddFurtherLanes(generation);
  absl::MutexLock turn(&sink_turn_);
  sink_->OnAdmitted(generation, lists_checksums);
}

bool PullState::NoteAdmitted(uint32_t connection, BufferGeneration generation) {
  absl::MutexLock lock(&mu_);
  if (connection == first_ && !generation_.has_value()) return true;
  if (generation != *generation_) {
    CloseLocked({SourceFailure::kGenerationChanged,
                 absl::StrCat("the buffer went from generation ", generation_->value, " to ",
                              generation.value)});
    return false;
  }
  lanes_[connection].admitted = true;
  AskMoved();
  AskChecksumsLocked();
  return false;
}

void PullState::OnConnectionChecksums(SegmentIndex first,
                                      absl::Span<const SegmentChecksum> checksums) {
  {
    absl::MutexLock lock(&mu_);
    checksums_outstanding_ -= std::min<uint64_t>(checksums_outstanding_, checksums.size());
  }
  absl::MutexLock turn(&sink_turn_);
  sink_->OnChecksums(first, checksums);
}

void PullState::AddFurtherLanes(BufferGeneration generation) {
  absl::MutexLock lock(&mu_);
  generation_ = generation;
  lanes_[first_].admitted = true;
  for (const SegmentRange& range : early_asks_) AskLocked(range);
  early_asks_.clear();
  if (target_.layout->bytes() < kMinBytesForMoreConnections || failure_.has_value()) return;
  if (target_.to_map) return;
  const uint32_t most =
      target_.far ? std::max(limits_.connections_per_pull, limits_.connections_per_far_pull)
                  : limits_.connections_per_pull;
  while (lanes_.size() < first_ + most) AddLane(LaneRole::kJoins);
}

bool PullState::OnConnectionSegmentBegins(SegmentIndex segment, RemoteMemory* writer,
                                          std::vector<iovec>* iov) {
  absl::MutexLock turn(&sink_turn_);
  if (writer != nullptr) {
    return sink_->OnSegmentBeginsInPlace(
        segment, [writer](absl::Span<const iovec> into) { return writer->CanWrite(into); }, iov);
  }
  return sink_->OnSegmentBegins(segment, iov);
}

void PullState::OnConnectionSegment(uint32_t connection, const SegmentHeader& header, bool landed,
                                    SegmentChecksum computed) {
  bytes_received_->fetch_add(header.bytes);
  {
    absl::MutexLock lock(&mu_);
    lanes_[connection].outstanding.Take(header.segment);
    AskMoved();
  }
  if (!landed) return;
  absl::MutexLock turn(&sink_turn_);
  sink_->OnSegment(header.segment, header.checksum, computed);
}

void PullState::OnConnectionAlive() {
  {
    absl::MutexLock lock(&mu_);
    if (!generation_.has_value()) return;  // it is admitted within limits of its own
  }
  absl::MutexLock turn(&sink_turn_);
  sink_->OnAlive();
}

void PullState::OnConnectionMapped(absl::StatusOr<std::shared_ptr<const MappedShard>> shard) {
  absl::MutexLock turn(&sink_turn_);
  sink_->OnMapped(std::move(shard));
}

void PullState::OnConnectionDeviceHangs(absl::Status why) {
  absl::MutexLock turn(&sink_turn_);
  sink_->OnDeviceHangs(std::move(why));
}

// ---- closing

void PullState::Close(SourceFailure failure, std::string detail) {
  absl::MutexLock lock(&mu_);
  CloseLocked({failure, std::move(detail)});
}

void PullState::Finish() {
  absl::MutexLock lock(&mu_);
  FinishLocked({SourceFailure::kClosed, "finished"});
}

// The connections still open end one by one, each where the source says so.
void PullState::FinishLocked(Failure failure) {
  if (failure_.has_value()) return;
  failure_ = std::move(failure);
  for (const Lane& lane : lanes_) {
    if (lane.connection == nullptr) continue;
    lane.connection->loop().Post([connection = lane.connection] { connection->SendFinish(); });
  }
}

void PullState::CloseLocked(Failure failure) {
  if (std::exchange(closing_, true)) return;
  if (!failure_.has_value()) failure_ = std::move(failure);
  for (const Lane& lane : lanes_) {
    if (lane.connection == nullptr) continue;
    lane.connection->loop().Post([connection = lane.connection, failure = *failure_] {
      connection->Shut(failure.first, failure.second);
    });
  }
}

bool PullState::MoveToOthers(uint32_t connection) {
  if (failure_.has_value() || !lanes_[connection].admitted) return false;
  const bool others = std::any_of(lanes_.begin(), lanes_.end(),
                                  [](const Lane& other) { return other.CanBeAsked(); });
  if (!others) return false;
  TakeBackFrom(connection);
  AskMoved();
  AskChecksumsLocked();
  return true;
}

bool PullState::TakeOtherWay(uint32_t connection) {
  if (failure_.has_value() || ways_tried_ == kMaxWaysTried) return false;
  ++ways_tried_;
  TakeBackFrom(connection);
  first_ = static_cast<uint32_t>(lanes_.size());
  AddLane(LaneRole::kTakesOver);
  return true;
}

// The segments are asked of another connection, and the rest of the list of sums too.
void PullState::TakeBackFrom(uint32_t connection) {
  Lane& lane = lanes_[connection];
  lane.outstanding.AddOpenTo(&moved_);
  lane.outstanding.Clear();
  if (checksums_from_ == connection) checksums_from_.reset();
}

bool PullState::AllClosed() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.connection == nullptr; });
}

void PullState::OnConnectionShut(uint32_t connection) {
  const absl::MutexLock lock(&mu_);
  lanes_[connection].shut = true;
}

void PullState::OnConnectionClosed(uint32_t connection, SourceFailure failure,
                                   const std::string& detail, ConnectionEnd end) {
  Failure last;
  bool goes_on = false;
  {
    absl::MutexLock lock(&mu_);
    if (connection < lanes_.size()) {
      lanes_[connection].connection = nullptr;
      goes_on = HandleLaneEnd(connection, failure, detail, end);
    }
    if (!goes_on) {
      if (!failure_.has_value() || !AllClosed() || closed_reported_) return;
      closed_reported_ = true;
      last = *failure_;
    }
  }
  // The source has nothing to say until it is asked over the other way.
  if (goes_on) return OnConnectionAlive();
  absl::MutexLock turn(&sink_turn_);
  sink_->OnClosed(last.first, last.second);
}

bool PullState::HandleLaneEnd(uint32_t connection, SourceFailure failure, const std::string& detail,
                              ConnectionEnd end) {
  // A further connection that could not be had costs nothing but speed.
  const bool needed = connection == first_ || lanes_[connection].was_used || AllClosed();
  if (!needed) return false;
  const bool lost_way = end == ConnectionEnd::kWayLost;
  // One of several devices, or its way to the source's, has failed.
  if ((lost_way || end == ConnectionEnd::kMemoryLost) && MoveToOthers(connection)) return false;
  if (lost_way && TakeOtherWay(connection)) return true;
  if (end == ConnectionEnd::kSaid) {
    // Segments on their way on the others count, where the source ends in good order.
    FinishLocked({failure, detail});
  } else {
    CloseLocked({failure, detail});
  }
  return false;
}

}  // namespace th::stream
