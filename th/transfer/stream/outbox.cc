#include "th/transfer/stream/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace th::stream {
namespace {

// Most kernels allow 1024 (IOV_MAX).
constexpr size_t kMaxPiecesPerCall = 1024;

}  // namespace

void Outbox::AddControl(std::string frame) {
  controls_.push_back(std::move(frame));
  std::string& kept = controls_.back();
  iov_.push_back({kept.data(), kept.size()});
  bytes_left_ += kept.size();
}

void Outbox::BeginSegment(const SegmentHeader& header) {
  headers_.push_back(EncodeSegmentHeader(header));
  segments_.push_back(iov_.size());
  iov_.push_back({headers_.back().data(), kFrameHeaderBytes});
  bytes_left_ += kFrameHeaderBytes + header.bytes;
}

void Outbox::AddSegment(const SegmentHeader& header, SegmentStore& store) {
  BeginSegment(header);
  store.AppendPieces(header.segment, &iov_);
}

void Outbox::AddSegment(const SegmentHeader& header, absl::Span<const std::byte> bytes,
                        std::shared_ptr<const void> keep) {
  BeginSegment(header);
  // It is only read.
  iov_.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
  kept_.push_back(std::move(keep));
}

void Outbox::DropUnbegun() {
  const auto unbegun = [this](size_t at) {
    return at >= first_ && iov_[at].iov_len == kFrameHeaderBytes;
  };
  const auto first = std::find_if(segments_.begin(), segments_.end(), unbegun);
  if (first == segments_.end()) return;
  for (size_t i = *first; i < iov_.size(); ++i) bytes_left_ -= iov_[i].iov_len;
  iov_.resize(*first);
  segments_.erase(first, segments_.end());
  if (bytes_left_ == 0) Clear();
}

Outbox::Sent Outbox::Send(int fd, uint64_t limit) {
  limited_.clear();
  uint64_t left = std::min(limit, bytes_left_);
  for (size_t i = first_; left > 0 && limited_.size() < kMaxPiecesPerCall; ++i) {
    const size_t take = std::min<uint64_t>(iov_[i].iov_len, left);
    if (take > 0) limited_.push_back({iov_[i].iov_base, take});
    left -= take;
  }
  msghdr message{};
  message.msg_iov = limited_.data();
  message.msg_iovlen = limited_.size();
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return {0, errno == EWOULDBLOCK ? EAGAIN : errno};
  Consume(static_cast<uint64_t>(sent));
  return {static_cast<uint64_t>(sent), 0};
}

void Outbox::Consume(uint64_t bytes) {
  bytes_left_ -= bytes;
  while (bytes > 0) {
    iovec& piece = iov_[first_];
    const size_t take = std::min<uint64_t>(piece.iov_len, bytes);
    piece.iov_base = static_cast<char*>(piece.iov_base) + take;
    piece.iov_len -= take;
    bytes -= take;
    if (piece.iov_len == 0) ++first_;
  }
  if (bytes_left_ == 0) Clear();
}

void Outbox::Clear() {
  iov_.clear();
  first_ = 0;
  headers_.clear();
  segments_.clear();
  controls_.clear();
  kept_.clear();
}

}  // namespace th::stream
