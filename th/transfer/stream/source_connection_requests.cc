// The side of a source's connection that listens: what the reader says, and what the source's owner
// answers.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/source_connection.h"

namespace th::stream {
namespace {

// Requests are small: what one read takes.
constexpr size_t kRequestBytes = 4096;
// Reads a turn, so that a peer that floods us with requests cannot hold the loop.
constexpr int kReadsPerTurn = 16;

// All bytes of the shard, what lies side by side as one run. By storage, not by segment: a shard
// has thousands of segments, and few tensors in most cases.
std::vector<ServedMemory::Run> RunsOf(const SegmentStore& store) {
  std::vector<ServedMemory::Run> runs;
  const std::vector<MemoryRegion> regions = store.regions();
  auto region = regions.begin();  // one of each storage that has bytes, in their order
  for (const ShardLayout::Storage& storage : store.layout().storages()) {
    if (storage.bytes == 0) continue;
    const iovec piece{(region++)->address, storage.bytes};
    if (!runs.empty()) {
      iovec& last = runs.back().memory;
      if (static_cast<char*>(last.iov_base) + last.iov_len == piece.iov_base) {
        last.iov_len += piece.iov_len;
        continue;
      }
    }
    runs.push_back({.stream_offset = storage.stream_offset, .memory = piece});
  }
  return runs;
}

}  // namespace

void SourceConnection::ReadRequests() {
  std::array<char, kRequestBytes> buffer;
  for (int turn = 0; turn < kReadsPerTurn && !closed_; ++turn) {
    const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return CloseNow();
    parser_.Append(absl::string_view(buffer.data(), static_cast<size_t>(got)));
    // Once the session is ending nothing counts but what lands of that which was located before.
    while (!closed_ && (!session_.ending() || !located_.empty())) {
      absl::StatusOr<std::optional<Frame>> frame = parser_.Next();
      if (frame.ok() && !frame->has_value()) break;
      const absl::Status handled = frame.ok() ? HandleFrame(**frame) : frame.status();
      if (!handled.ok()) {
        located_.Clear();
        session_.HandleBroken(std::string(handled.message()));
      }
    }
    Act();
    if (session_.ending() && located_.empty()) parser_ = FrameParser();
  }
}

absl::Status SourceConnection::HandleFrame(const Frame& frame) {
  if (std::holds_alternative<Skipped>(frame)) return absl::OkStatus();
  if (const auto* hello = std::get_if<Hello>(&frame)) return HandleHello(*hello);
  if (!greeted_) return absl::InvalidArgumentError("the first frame is no Hello");
  if (const auto* open = std::get_if<Open>(&frame)) return HandleOpen(*open);
  if (const auto* ask = std::get_if<Ask>(&frame)) return HandleAsk(*ask);
  if (const auto* ask = std::get_if<AskChecksums>(&frame)) return HandleAskChecksums(*ask);
  if (const auto* landed = std::get_if<Landed>(&frame)) return HandleLanded(*landed);
  if (const auto* memory = std::get_if<Memory>(&frame)) return HandleMemory(*memory);
  if (std::holds_alternative<AskMapping>(frame)) return HandleAskMapping();
  if (std::holds_alternative<Alive>(frame)) return absl::OkStatus();
  if (std::holds_alternative<Close>(frame)) {
    CloseNow();
    return absl::OkStatus();
  }
  if (std::holds_alternative<Finish>(frame)) {
    session_.HandleFinish(MonotonicNow());
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a frame that readers never send");
}

absl::Status SourceConnection::HandleHello(const Hello& hello) {
  if (std::exchange(greeted_, true)) return absl::InvalidArgumentError("a second Hello");
  ProtocolHello own = OwnHello();
  return AgreeOnVersion(own, hello.hello).status();
}

absl::Status SourceConnection::HandleMemory(const Memory& memory) {
  if (served_ == nullptr || open_.has_value()) {
    return absl::InvalidArgumentError("Memory after Open, or on a transport without it");
  }
  TH_ASSIGN_OR_RETURN(std::string reply, served_->HandleAnswer(memory.words));
  if (!reply.empty()) words_.push_back(Encode(Memory{std::move(reply)}));
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleOpen(const stream::Open& open) {
  TH_RETURN_IF_ERROR(session_.HandleOpened(MonotonicNow()));
  open_ = open;
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAsk(const Ask& ask) {
  TH_RETURN_IF_ERROR(session_.HandleAsk(ask.range, MonotonicNow()));
  StopWaiting();  // this may have arrived
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAskChecksums(const AskChecksums& ask) {
  TH_RETURN_IF_ERROR(session_.HandleAskChecksums(ask.range, MonotonicNow()));
  StopWaiting();  // they may be known
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleLanded(const Landed& landed) {
  TH_ASSIGN_OR_RETURN(const uint64_t bytes, located_.TakeLanded(landed.segment));
  stall_.HandleTaken();
  const absl::Time now = MonotonicNow();
  session_.HandleSent(AllLeft(), now);
  table_->CountSent(*transfer_, std::min(bytes, landed.bytes), now);
  return absl::OkStatus();
}

absl::Status SourceConnection::HandleAskMapping() {
  if (transfer_ == nullptr) return absl::InvalidArgumentError("AskMapping before Admitted");
  if (std::exchange(asked_mapping_, true)) {
    return absl::InvalidArgumentError("asked for a mapping a second time");
  }
  absl::StatusOr<std::string> words = MapShard();
  words_.push_back(Encode(Mapping{words.status(), words.ok() ? *std::move(words) : ""}));
  return absl::OkStatus();
}

absl::StatusOr<std::string> SourceConnection::MapShard() {
  if (served_ == nullptr) {
    return absl::UnimplementedError("this transport maps no memory of the source");
  }
  const SegmentStore& store = *transfer_->store;
  if (store.closed()) return absl::UnavailableError("the source takes its buffer back");
  if (store.device() != nullptr) {
    return absl::FailedPreconditionError(
        "the version lies in the memory of a GPU, which the host cannot map; publish a snapshot of "
        "it, or update a buffer");
  }
  // A fill that has not checked the whole may begin anew in these pages.
  if (!store.complete()) {
    return absl::UnavailableError(absl::StrCat("the source is still receiving the version itself (",
                                               store.held().count(), " of ",
                                               store.layout().segment_count(), " segments)"));
  }
  return served_->Map(RunsOf(store));
}

ServingTable::Report SourceConnection::Teller() {
  return [loop = loop_, weak = weak_from_this()](ServingTable::News news) {
    loop->Post([weak, news = std::move(news)] {
      if (const auto self = weak.lock()) self->HandleNews(news);
    });
  };
}

void SourceConnection::HandleNews(const ServingTable::News& news) {
  const absl::Time now = MonotonicNow();
  if (const auto* transfer = std::get_if<std::shared_ptr<ServingTable::Transfer>>(&news)) {
    if (closed_) return;
    transfer_ = *transfer;
    session_.HandleAdmitted(transfer_->generation, transfer_->store->layout().segment_count(), now);
  } else if (const auto* why = std::get_if<absl::Status>(&news)) {
    session_.HandleRefused(*why, now);
  } else {
    session_.HandleEnd(std::get<ServingEnd>(news), now);
  }
  Act();
}

}  // namespace th::stream
