#include "th/transfer/stream/pull_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/stall_watch.h"

namespace th::stream {
namespace {

// How often a closed connection whose destinations a GPU still writes is looked after, beside what
// its memory says by itself.
constexpr absl::Duration kEndTick = absl::Milliseconds(50);
// How often an opening connection is looked after.
constexpr absl::Duration kOpeningTick = absl::Milliseconds(50);
// Requests that wait in this process for a socket to take them: a source that does not even read
// its requests is no source.
constexpr size_t kMaxUnsentBytes = 64 << 10;
// A reader that is late answers a whole window of located segments at once, beside its requests.
static_assert(kMaxWindowSegments * kFrameHeaderBytes <= kMaxUnsentBytes * 3 / 4);

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

// ---- what the owner and the fill hear

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
