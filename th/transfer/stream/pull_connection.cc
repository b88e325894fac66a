#include "th/transfer/stream/pull_connection.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/status/status_macros.h"
#include "th/transfer/hung_device.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/stall_watch.h"

namespace th::stream {
namespace {

// Limits the bytes that one connection receives before its loop turns to the others.
constexpr size_t kBytesPerTurn = size_t{4} << 20;
// Pieces of memory one call scatters to.
constexpr size_t kPiecesPerCall = 512;
// Limits the bytes that are read of the source's memory before the control block is compared and
// the source is told: both once for several segments. More would make the source wait for its
// window of located segments (ServedMemory::Window), and what landed leave the cache before it is
// summed.
constexpr size_t kBytesUnfollowed = size_t{1} << 20;
// The sink hears of life this often at most while a segment trickles in.
constexpr absl::Duration kAliveInterval = absl::Milliseconds(50);
// How often a closed connection whose destinations a GPU still writes is looked after, beside what
// its memory says by itself.
constexpr absl::Duration kEndTick = absl::Milliseconds(50);
// A tick that is later than this means that this process did not run.
constexpr absl::Duration kLateTick = absl::Milliseconds(100);
// How often an opening connection is looked after.
constexpr absl::Duration kOpeningTick = absl::Milliseconds(50);
// Requests that wait in this process for a socket to take them: a source that does not even read
// its requests is no source.
constexpr size_t kMaxUnsentBytes = 64 << 10;

}  // namespace

// Hears for a connection that reads of the source's memory have ended.
class PullConnection::MemoryWatch : public EventLoop::Handler {
 public:
  explicit MemoryWatch(std::weak_ptr<PullConnection> connection)
      : connection_(std::move(connection)) {}
  void OnReady(uint32_t) override {
    if (const auto connection = connection_.lock()) connection->FollowReads();
  }
  void OnLoopStops() override {
    if (const auto connection = connection_.lock()) connection->OnLoopStops();
  }

 private:
  const std::weak_ptr<PullConnection> connection_;
};

PullConnection::PullConnection(Setup setup, std::shared_ptr<EventLoop> loop,
                               std::shared_ptr<PullConnectionOwner> owner)
    : setup_(std::move(setup)), loop_(std::move(loop)), owner_(std::move(owner)) {}

// ---- connecting

void PullConnection::Start() {
  if (state_ == State::kClosed) return;
  started_at_ = heard_at_ = opening_tick_at_ = MonotonicNow();
  absl::StatusOr<Socket> socket = BeginConnect(setup_.address);
  if (!socket.ok()) {
    return Shut(SourceFailure::kConnect,
                absl::StrCat("cannot connect to ", setup_.address.ToString(), ": ",
                             socket.status().message()));
  }
  socket_ = *std::move(socket);
  events_ = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
  loop_->Watch(socket_.fd(), events_, shared_from_this());
  WatchOpening();
}

void PullConnection::FinishConnect() {
  if (const int error = TakeSocketError(socket_.fd()); error != 0) {
    return Shut(
        SourceFailure::kConnect,
        absl::StrCat("cannot connect to ", setup_.address.ToString(), ": ", ErrnoText(error)));
  }
  setup_.medium->Tune(socket_.fd());
  state_ = State::kOpening;
  started_at_ = heard_at_ = MonotonicNow();
  Medium::ReadSetup reading{.fd = socket_.fd(),
                            .number = setup_.number,
                            .checksummed = setup_.layout->checksum() != ChecksumAlgorithm::kNone};
  if (setup_.into != nullptr) reading.into = *setup_.into;
  reading.begin_device_write = setup_.begin_device_write;
  memory_ = setup_.medium->Read(reading);
  if (memory_ != nullptr && memory_->fd() >= 0) {
    loop_->Watch(memory_->fd(), EPOLLIN, std::make_shared<MemoryWatch>(weak_from_this()));
  }
  // The wish follows the greeting at once, a round trip less, but where it depends on whether the
  // source's memory can be read.
  asked_to_open_ = memory_ == nullptr;
  const std::string hello = Encode(Hello{OwnHello()});
  Send(asked_to_open_ ? hello + Encode(setup_.open) : hello);
}

// Bounds the time until the source has admitted us.
void PullConnection::WatchOpening() {
  const absl::Time now = MonotonicNow();
  // A tick that comes late means that this process did not run: nobody else is blamed for it.
  const absl::Duration late = now - opening_tick_at_;
  if (late > kOpeningTick) {
    started_at_ += late;
    heard_at_ += late;
  }
  const TransportLimits& limits = setup_.limits;
  if (state_ == State::kConnecting && now - started_at_ >= limits.connect_timeout) {
    return Shut(SourceFailure::kConnect,
                absl::StrCat("no connection to ", setup_.address.ToString(), " within ",
                             absl::FormatDuration(limits.connect_timeout)));
  }
  if (state_ == State::kOpening && now - heard_at_ >= limits.admission_silence) {
    return Shut(
        SourceFailure::kStalled,
        absl::StrCat("connected, but silent for ", absl::FormatDuration(limits.admission_silence)));
  }
  if (state_ == State::kOpening && now - started_at_ >= limits.admission_timeout) {
    return Shut(
        SourceFailure::kStalled,
        absl::StrCat("not admitted within ", absl::FormatDuration(limits.admission_timeout)));
  }
  if (state_ != State::kConnecting && state_ != State::kOpening) return;
  if (setup_.takes_over && state_ == State::kOpening && !asked_to_open_) NoteAlive(now);
  opening_tick_at_ = now + kOpeningTick;
  loop_->RunAt(opening_tick_at_, IfAlive(weak_from_this(), &PullConnection::WatchOpening));
}

void PullConnection::OnReady(uint32_t events) {
  if (last_word_.has_value()) {
    // Only what was located before it is still read, and answered.
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) return ShutAsSaid();
    if ((events & EPOLLOUT) != 0) Flush();
    return;
  }
  if (state_ == State::kConnecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    FinishConnect();
    return;
  }
  if ((events & EPOLLOUT) != 0) Flush();
  // Errors too come out of the read, after the bytes that came before them.
  if (state_ != State::kClosed && (events & ~uint32_t{EPOLLOUT}) != 0) ReadSome();
}

// ---- sending

void PullConnection::SendAsk(SegmentRange range) {
  if (state_ != State::kOpen) return;
  asked_.Push(range);
  Send(Encode(Ask{range}));
}

void PullConnection::SendAskChecksums(SegmentRange range) {
  if (state_ != State::kOpen || !lists_checksums_ || !checksums_asked_.empty()) return;
  checksums_asked_ = range;
  if (!checksums_asked_.empty()) Send(Encode(AskChecksums{checksums_asked_}));
}

void PullConnection::SendAskMapping() {
  if (state_ != State::kOpen || mapping_asked_) return;
  if (!answers_ask_mapping_ || memory_ == nullptr) {
    return owner_->OnConnectionMapped(absl::UnimplementedError(
        "the source runs a release that lets nobody use its memory in place"));
  }
  mapping_asked_ = true;
  Send(Encode(AskMapping{}));
}

void PullConnection::SendFinish() {
  if (state_ == State::kOpen) return Send(Encode(Finish{}));
  Shut(SourceFailure::kClosed, "finished before it was open");
}

void PullConnection::Send(std::string bytes) {
  Queue(std::move(bytes));
  if (state_ != State::kClosed) Flush();
}

void PullConnection::Queue(std::string bytes) {
  if (unsent_.size() + bytes.size() > kMaxUnsentBytes) {
    return Shut(SourceFailure::kStalled, "the source takes no requests");
  }
  unsent_ += bytes;
  CountExtraBytes();
}

void PullConnection::Flush() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        send(socket_.fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return WatchFor(EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    }
    // A broken connection: the read says why, and may have a last word of the source before it.
    if (sent < 0) return WatchFor(EPOLLIN | EPOLLRDHUP);
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  WatchFor(EPOLLIN | EPOLLRDHUP);
}

void PullConnection::WatchFor(uint32_t events) {
  // After its last word a source is not listened to: the end of its stream would wake us for ever.
  if (last_word_.has_value()) events &= ~uint32_t{EPOLLIN | EPOLLRDHUP};
  if (state_ == State::kClosed || events == events_) return;
  events_ = events;
  loop_->Rewatch(socket_.fd(), events);
}

// ---- receiving

void PullConnection::ReadSome() {
  for (size_t budget = kBytesPerTurn; state_ != State::kClosed && !last_word_.has_value();) {
    size_t wanted = 0;
    bytes_read_ = 0;
    const ssize_t got = Receive(&wanted);
    if (got < 0 && errno == EINTR) continue;
    const int error = errno;
    if (got <= 0) FollowReads();  // what was read before the end counts
    if (state_ == State::kClosed || (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))) return;
    if (got <= 0)
      return ShutByEnd(got == 0 ? "the source closed the connection" : ErrnoText(error));
    const auto bytes = static_cast<size_t>(got);
    Consume(bytes);
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

// ---- out of the source's memory

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

void PullConnection::NoteAlive(absl::Time now) {
  if (now - reported_alive_at_ < kAliveInterval) return;
  reported_alive_at_ = now;
  owner_->OnConnectionAlive();
}

void PullConnection::CountExtraBytes() {
  uint64_t held = 0;
  if (state_ != State::kClosed) {
    held = sizeof(raw_header_) + unsent_.capacity() + body_.capacity() +
           (destination_.capacity() + receive_iov_.capacity()) * sizeof(iovec);
    if (payload_left_ > 0 && !landing_) held += loop_->scratch().size();
    if (reads_.has_value()) held += reads_->extra_bytes();
  }
  if (held == extra_bytes_reported_) return;
  setup_.extra_bytes->Change(std::exchange(extra_bytes_reported_, held), held);
}

// ---- closing

// The source, or what lies between, has ended the connection without a word. In the middle of a
// segment a source cannot say why; where it may have been this reader's standing still, that is
// told.
void PullConnection::ShutByEnd(std::string how) {
  if (payload_left_ > 0) {
    absl::StrAppend(&how, " in the middle of segment ", segment_.segment.value);
    // The pause that the end has ended counts too.
    const absl::Duration pause = std::max(longest_pause_, MonotonicNow() - heard_at_);
    if (pause >= kStalledTime + kKeptTime) {
      absl::StrAppend(&how, "; this process took none of its bytes for ",
                      absl::FormatDuration(absl::Trunc(pause, kStallTick)),
                      ", and a source cuts readers that so keep its staging slots from others");
    }
  }
  Shut(SourceFailure::kClosed, std::move(how));
}

// A source that says no before it has admitted us cannot be read over this transport, where that
// depends on its memory.
void PullConnection::ShutAsSaid() {
  const bool cannot = !asked_to_open_ || (memory_ != nullptr && state_ == State::kOpening);
  Shut(cannot ? SourceFailure::kConnect : SourceFailure::kClosed, *last_word_,
       ConnectionEnd::kSaid);
}

void PullConnection::ShutForGeneration(BufferGeneration other) {
  Shut(SourceFailure::kGenerationChanged,
       absl::StrCat("the buffer went from generation ", generation_.value, " to ", other.value));
}

void PullConnection::Shut(SourceFailure failure, std::string detail, ConnectionEnd end) {
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  const std::shared_ptr<PullConnection> self = shared_from_this();  // until the end of this call
  CountExtraBytes();
  if (landing_ && payload_left_ > 0) {
    setup_.cut_bytes->fetch_add(segment_.bytes - payload_left_);
  }
  if (reads_.has_value()) setup_.cut_bytes->fetch_add(reads_->bytes_under_way());
  to_report_ = Reported{failure, std::move(detail), end};
  if (socket_.open()) {
    loop_->Unwatch(socket_.fd());
    socket_.Close();
  }
  owner_->OnConnectionShut(setup_.number);
  FollowEnd();
}

void PullConnection::FollowEnd() {
  const bool hangs = reads_.has_value() && !OwnCopiesExcuseSilence(MonotonicNow());
  if (memory_ == nullptr || memory_->End(hangs)) return ReportClosed();
  if (std::exchange(watching_end_, true)) return;
  const absl::Time due = MonotonicNow() + kEndTick;
  loop_->RunAt(due, [weak = weak_from_this(), due] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->watching_end_ = false;
    if (!self->to_report_.has_value()) return;
    // Its owner would take the wait for the source's silence, and blame the source.
    const absl::Time now = MonotonicNow();
    self->ForgivePause(due, now);
    if (self->OwnCopiesExcuseSilence(now)) self->NoteAlive(now);
    self->FollowEnd();
  });
}

void PullConnection::ReportClosed() {
  if (!to_report_.has_value()) return;
  const Reported reported = *std::exchange(to_report_, std::nullopt);
  if (memory_ != nullptr && memory_->fd() >= 0) loop_->Unwatch(memory_->fd());
  memory_ = nullptr;  // nothing is written into a destination any more
  reads_.reset();     // which kept the lists of the destinations until then
  const std::shared_ptr<PullConnectionOwner> owner = std::exchange(owner_, nullptr);
  owner->OnConnectionClosed(setup_.number, reported.failure, reported.detail, reported.end);
}

// There is nothing that the loop would be kept from: what a GPU still writes is waited for.
void PullConnection::OnLoopStops() {
  const std::shared_ptr<PullConnection> self = shared_from_this();
  Shut(SourceFailure::kClosed, "the transport was shut down");
  ReportClosed();
}

}  // namespace th::stream
