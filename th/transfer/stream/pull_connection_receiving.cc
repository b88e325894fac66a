// PullConnection's receiving of what the source sends: frames, and the payloads of segments.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/pull_connection.h"

namespace th::stream {
namespace {

// Limits the bytes that one connection receives before its loop turns to the others.
constexpr size_t kBytesPerTurn = size_t{4} << 20;
// Pieces of memory one call scatters to.
constexpr size_t kPiecesPerCall = 512;
// Control frames that one call takes where segments are copied together: the places of some hundred
// of them. As much of a payload that comes among them is copied once more.
constexpr size_t kControlBytesPerCall = size_t{16} << 10;
}  // namespace

void PullConnection::ReadSome() {
  for (size_t budget = kBytesPerTurn; state_ != State::kClosed && !last_word_.has_value();) {
    size_t wanted = 0;
    bytes_read_ = 0;
    const bool buffered = memory_ != nullptr && memory_->copies_together() && payload_left_ == 0;
    const ssize_t got = buffered ? ReceiveControl(&wanted) : Receive(&wanted);
    if (got < 0 && errno == EINTR) continue;
    const int error = errno;
    if (got <= 0) FollowReads();  // what was read before the end counts
    if (state_ == State::kClosed || (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))) return;
    if (got <= 0)
      return ShutByEnd(got == 0 ? "the source closed the connection" : ErrnoText(error));
    const auto bytes = static_cast<size_t>(got);
    if (buffered) {
      ConsumeBuffered(absl::MakeConstSpan(loop_->scratch().data(), bytes));
    } else {
      Consume(bytes);
    }
    // Less than wanted: there was no more, and asking would only hear so. The loop calls again.
    if (bytes < wanted || bytes + bytes_read_ >= budget) return FollowReads();
    budget -= bytes + bytes_read_;
  }
}

// One call for the rest of a segment, or of a frame, and the header of the next one.
ssize_t PullConnection::Receive(size_t* wanted) {
  receive_iov_.clear();
  if (body_left_ > 0) {
    receive_iov_.push_back({body_.data() + body_.size() - body_left_, body_left_});
  } else if (payload_left_ > 0 && landing_) {
    size_t offset = piece_offset_;
    for (size_t i = piece_; i < destination_.size() && receive_iov_.size() < kPiecesPerCall; ++i) {
      receive_iov_.push_back({static_cast<char*>(destination_[i].iov_base) + offset,
                              destination_[i].iov_len - offset});
      offset = 0;
    }
  } else if (payload_left_ > 0) {
    std::vector<char>& scratch = loop_->scratch();
    receive_iov_.push_back({scratch.data(), std::min<uint64_t>(scratch.size(), payload_left_)});
  }
  for (const iovec& piece : receive_iov_) *wanted += piece.iov_len;
  if (*wanted == body_left_ + payload_left_) {
    receive_iov_.push_back({raw_header_.data() + header_have_, kFrameHeaderBytes - header_have_});
    *wanted += receive_iov_.back().iov_len;
  }
  msghdr message{};
  message.msg_iov = receive_iov_.data();
  message.msg_iovlen = receive_iov_.size();
  CountExtraBytes();
  return recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
}

ssize_t PullConnection::ReceiveControl(size_t* wanted) {
  std::vector<char>& scratch = loop_->scratch();
  *wanted = std::min(scratch.size(), kControlBytesPerCall);
  return recv(socket_.fd(), scratch.data(), *wanted, MSG_DONTWAIT);
}

// Copies each part to where Receive would have put it.
void PullConnection::ConsumeBuffered(absl::Span<const char> received) {
  // Nothing counts behind the source's last word.
  while (!received.empty() && state_ != State::kClosed && !last_word_.has_value()) {
    size_t part = 0;
    if (body_left_ > 0) {
      part = std::min(received.size(), body_left_);
      std::memcpy(body_.data() + body_.size() - body_left_, received.data(), part);
    } else if (payload_left_ > 0) {
      part = std::min<uint64_t>(received.size(), payload_left_);
      if (landing_) CopyToDestination(received.first(part));
    } else {
      part = std::min(received.size(), kFrameHeaderBytes - header_have_);
      std::memcpy(raw_header_.data() + header_have_, received.data(), part);
    }
    received.remove_prefix(part);
    Consume(part);
  }
}

// Copies the payload's next bytes.
void PullConnection::CopyToDestination(absl::Span<const char> payload) {
  size_t offset = piece_offset_;
  for (size_t i = piece_; !payload.empty(); ++i) {
    const size_t part = std::min(payload.size(), destination_[i].iov_len - offset);
    std::memcpy(static_cast<char*>(destination_[i].iov_base) + offset, payload.data(), part);
    payload.remove_prefix(part);
    offset = 0;
  }
}

void PullConnection::Consume(size_t bytes) {
  const absl::Time now = MonotonicNow();
  if (payload_left_ > 0 || !asked_.empty())
    longest_pause_ = std::max(longest_pause_, now - heard_at_);
  heard_at_ = now;
  if (body_left_ > 0) {
    const size_t body = std::min<size_t>(bytes, body_left_);
    ConsumeBody(body);
    // Nothing counts behind the source's last word.
    const bool goes_on = state_ != State::kClosed && !last_word_.has_value();
    if (bytes > body && goes_on) ConsumeHeader(bytes - body);
    return;
  }
  const size_t payload = std::min<uint64_t>(bytes, payload_left_);
  if (payload > 0) ConsumePayload(payload);
  if (bytes > payload && state_ != State::kClosed) ConsumeHeader(bytes - payload);
}

void PullConnection::ConsumePayload(size_t bytes) {
  payload_left_ -= bytes;
  while (landing_ && bytes > 0) {
    const size_t take = std::min(bytes, destination_[piece_].iov_len - piece_offset_);
    bytes -= take;
    piece_offset_ += take;
    if (piece_offset_ < destination_[piece_].iov_len) break;
    ++piece_;
    piece_offset_ = 0;
  }
  if (payload_left_ == 0) {
    FinishSegment();
  } else {
    NoteAlive(heard_at_);
  }
}

void PullConnection::ConsumeHeader(size_t bytes) {
  header_have_ += bytes;
  if (header_have_ < kFrameHeaderBytes) return;
  header_have_ = 0;
  const absl::Status handled = HandleHeader();
  if (!handled.ok()) Shut(SourceFailure::kCorrupt, std::string(handled.message()));
}

void PullConnection::ConsumeBody(size_t bytes) {
  body_left_ -= bytes;
  if (body_left_ > 0) return;
  absl::StatusOr<Frame> frame = DecodeFrame(header_, body_);
  const absl::Status handled = frame.ok() ? HandleFrame(*frame) : frame.status();
  if (!handled.ok()) Shut(SourceFailure::kCorrupt, std::string(handled.message()));
}

absl::Status PullConnection::HandleHeader() {
  TH_ASSIGN_OR_RETURN(header_, DecodeHeader(raw_header_));
  if (header_.type != FrameType::kSegment && header_.body_bytes > 0) {
    body_.resize(header_.body_bytes);
    body_left_ = header_.body_bytes;
    return absl::OkStatus();
  }
  TH_ASSIGN_OR_RETURN(const Frame frame, DecodeFrame(header_, ""));
  return HandleFrame(frame);
}

absl::Status PullConnection::HandleFrame(const Frame& frame) {
  if (const auto* hello = std::get_if<Hello>(&frame)) {
    if (std::exchange(greeted_, true)) return absl::InvalidArgumentError("a second Hello");
    const absl::Status agreed = AgreeOnVersion(OwnHello(), hello->hello).status();
    if (!agreed.ok()) Shut(SourceFailure::kRefused, std::string(agreed.message()));
    lists_checksums_ = (hello->hello.features & kListsChecksums) != 0;
    answers_ask_mapping_ = (hello->hello.features & kAnswersAskMapping) != 0;
    return absl::OkStatus();
  }
  if (const auto* close = std::get_if<Close>(&frame)) {
    last_word_ = close->why.empty() ? "the source closed the transfer" : close->why;
    FollowReads();  // what was located before counts
    if (!ReadsAreUnderWay()) ShutAsSaid();
    return absl::OkStatus();
  }
  if (!greeted_) return absl::InvalidArgumentError("the first frame is no Hello");
  if (const auto* segment = std::get_if<SegmentHeader>(&frame)) return BeginSegment(*segment);
  if (const auto* located = std::get_if<Located>(&frame)) return StartRead(*located);
  if (const auto* refused = std::get_if<Refused>(&frame)) {
    Shut(SourceFailure::kRefused, std::string(refused->status.message()));
  } else if (const auto* memory = std::get_if<Memory>(&frame)) {
    return HandleMemory(*memory);
  } else if (const auto* admitted = std::get_if<Admitted>(&frame)) {
    return HandleAdmitted(*admitted);
  } else if (const auto* checksums = std::get_if<Checksums>(&frame)) {
    return TakeChecksums(*checksums);
  } else if (const auto* mapping = std::get_if<Mapping>(&frame)) {
    return TakeMapping(*mapping);
  } else if (std::holds_alternative<Alive>(frame)) {
    if (state_ == State::kOpen) owner_->OnConnectionAlive();
  } else if (!std::holds_alternative<Skipped>(frame)) {
    return absl::InvalidArgumentError("a frame that sources never send");
  }
  return absl::OkStatus();
}

// If the memory cannot be read the pull ends with kConnect before anything was asked, so that the
// reader can take another transport.
absl::Status PullConnection::HandleMemory(const Memory& memory) {
  if (memory_ == nullptr || asked_to_open_) {
    return absl::InvalidArgumentError("Memory a second time, or on a transport without it");
  }
  const absl::StatusOr<std::string> answer = memory_->HandleOffer(memory.words);
  if (absl::IsInvalidArgument(answer.status())) return answer.status();
  if (!answer.ok()) {
    LoseMemory(std::string(answer.status().message()));
    return absl::OkStatus();
  }
  if (!answer->empty()) Send(Encode(Memory{*answer}));
  FollowReads();
  return absl::OkStatus();
}

absl::Status PullConnection::HandleAdmitted(const Admitted& admitted) {
  if (state_ != State::kOpening) return absl::InvalidArgumentError("admitted twice");
  if (memory_ != nullptr) {
    if (!asked_to_open_) return absl::InvalidArgumentError("Admitted before Memory");
    if (!admitted.control.has_value()) {
      return absl::InvalidArgumentError("Admitted without the place of the control block");
    }
    reads_.emplace(memory_.get(), LocatedReads::Admission{*admitted.control, admitted.generation},
                   setup_.layout->checksum());
  }
  state_ = State::kOpen;
  generation_ = admitted.generation;
  owner_->OnConnectionAdmitted(setup_.number, admitted.generation, lists_checksums_);
  return absl::OkStatus();
}

absl::Status PullConnection::TakeSegment(const SegmentHeader& header) {
  if (!asked_.Take(header.segment)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", header.segment.value, " came, which is not what was asked"));
  }
  const uint64_t expected = setup_.layout->SegmentLength(header.segment);
  if (header.bytes != expected) {
    return absl::InvalidArgumentError(absl::StrCat("segment ", header.segment.value, " came with ",
                                                   header.bytes, " bytes instead of ", expected));
  }
  return absl::OkStatus();
}

absl::Status PullConnection::TakeChecksums(const Checksums& checksums) {
  if (checksums.first != checksums_asked_.begin ||
      checksums.checksums.size() > checksums_asked_.count()) {
    return absl::InvalidArgumentError(absl::StrCat("sums from segment ", checksums.first.value,
                                                   " on came, which is not what was asked"));
  }
  if (checksums.generation != generation_) {
    ShutForGeneration(checksums.generation);
    return absl::OkStatus();
  }
  checksums_asked_.begin.value += checksums.checksums.size();
  owner_->OnConnectionChecksums(checksums.first, checksums.checksums);
  return absl::OkStatus();
}

// The shard counts only if the control block, read once nobody would write it any more, is still
// that of the admission.
absl::Status PullConnection::TakeMapping(const Mapping& mapping) {
  if (!std::exchange(mapping_asked_, false)) {
    return absl::InvalidArgumentError("Mapping, which was not asked");
  }
  if (!mapping.status.ok()) {
    owner_->OnConnectionMapped(mapping.status);
    return absl::OkStatus();
  }
  absl::StatusOr<RemoteMemory::MappedInPlace> mapped =
      memory_->Map(mapping.words, reads_->control());
  if (absl::IsInvalidArgument(mapped.status())) return mapped.status();
  if (!mapped.ok()) {
    owner_->OnConnectionMapped(mapped.status());
    return absl::OkStatus();
  }
  if (const absl::Status same = reads_->CheckControl(mapped->control); !same.ok()) {
    Shut(SourceFailure::kGenerationChanged, std::string(same.message()));
    return absl::OkStatus();
  }
  owner_->OnConnectionMapped(std::move(mapped->shard));
  return absl::OkStatus();
}

absl::Status PullConnection::BeginSegment(const SegmentHeader& header) {
  TH_RETURN_IF_ERROR(TakeSegment(header));
  if (header.generation != generation_) {
    ShutForGeneration(header.generation);
    return absl::OkStatus();
  }
  segment_ = header;
  destination_.clear();
  piece_ = piece_offset_ = 0;
  landing_ = WantsSegment(header, /*writer=*/nullptr, &destination_);
  payload_left_ = header.bytes;
  if (payload_left_ == 0) FinishSegment();
  return absl::OkStatus();
}

// Asks the sink where the segment goes. False: its bytes are for nobody.
bool PullConnection::WantsSegment(const SegmentHeader& header, RemoteMemory* writer,
                                  std::vector<iovec>* destination) {
  if (!owner_->OnConnectionSegmentBegins(header.segment, writer, destination)) return false;
  uint64_t room = 0;
  for (const iovec& piece : *destination) room += piece.iov_len;
  return room == header.bytes;
}

void PullConnection::FinishSegment() {
  owner_->OnConnectionSegment(
      setup_.number, segment_, landing_,
      landing_ ? ChecksumPieces(destination_, setup_.layout->checksum()) : SegmentChecksum(0));
}

}  // namespace th::stream
