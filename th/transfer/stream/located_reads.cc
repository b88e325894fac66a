#include "th/transfer/stream/located_reads.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace th::stream {

void LocatedReads::Start(const SegmentHeader& segment, absl::Span<const Located::Piece> from,
                         std::vector<iovec> into, absl::Time now) {
  if (readings_.empty()) moved_at_ = now;
  readings_.push_back({.segment = segment, .skipped = false, .into = std::move(into)});
  extra_bytes_ += readings_.back().into.capacity() * sizeof(iovec);
  memory_->Start(from, readings_.back().into, admission_.control);
}

void LocatedReads::Skip(const SegmentHeader& segment) {
  readings_.push_back({.segment = segment, .skipped = true, .into = {}});
}

std::optional<LocatedReads::Answer> LocatedReads::TakeSkipped() {
  if (readings_.empty() || !readings_.front().skipped) return std::nullopt;
  Answer answer{.segment = readings_.front().segment};
  answer.segment.bytes = 0;
  readings_.pop_front();
  return answer;
}

std::variant<LocatedReads::Answer, LocatedReads::Failure> LocatedReads::Finish(
    const RemoteMemory::Read& read, absl::Time now) {
  if (read.control.has_value()) {
    const absl::Status same = CheckControl(*read.control);
    if (!same.ok()) return Failure{Failure::Cause::kGeneration, std::string(same.message())};
  }
  if (!read.status.ok()) {
    return Failure{read.lost ? Failure::Cause::kMemoryLost : Failure::Cause::kSource,
                   std::string(read.status.message())};
  }
  const Reading reading = std::move(readings_.front());
  readings_.pop_front();
  extra_bytes_ -= reading.into.capacity() * sizeof(iovec);
  moved_at_ = now;
  return Answer{.segment = reading.segment,
                .landed = true,
                .computed = read.checksum.has_value() ? *read.checksum
                                                      : ChecksumPieces(reading.into, checksum_)};
}

absl::Status LocatedReads::CheckControl(const RemoteMemory::Read::Control& control) const {
  const bool same =
      control.generation == admission_.generation.value && control.life == admission_.control.life;
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the buffer left generation ", admission_.generation.value, " while it was read"));
}

uint64_t LocatedReads::bytes_under_way() const {
  uint64_t bytes = 0;
  for (const Reading& reading : readings_) bytes += reading.skipped ? 0 : reading.segment.bytes;
  return bytes;
}

}  // namespace th::stream
