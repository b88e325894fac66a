// The segments of one connection of a pull that are read out of the source's memory: those that the
// source has located and the reader has not answered, in the source's order, in which they are
// answered too. Decides which of them count.
//
// A segment that was read counts only if the buffer's ControlBlock, read after the bytes, still
// holds the generation and the life of the admission. A reader process that was stopped while its
// source ended the transfer and wrote the memory anew therefore never accepts the new bytes.
//
//   LocatedReads reads(memory.get(), {.control = control, .generation = generation}, checksum);
//   reads.Start(segment, pieces, destination, now);  // or Skip(segment): nobody wants its bytes
//   while (const auto skipped = reads.TakeSkipped()) Answer(*skipped);
//   ... each time memory->Poll() gives a read:
//   const auto ended = reads.Finish(read, now);  // then again TakeSkipped
//
// Reads no socket and no clock. Not thread-safe: its connection's loop owns it.
#ifndef TH_TRANSFER_STREAM_LOCATED_READS_H_
#define TH_TRANSFER_STREAM_LOCATED_READS_H_

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/weights/checksum.h"

namespace th::stream {

class LocatedReads {
 public:
  // The buffer to which the source has admitted the reader.
  struct Admission {
    ControlPlace control;
    BufferGeneration generation;
  };
  // A segment that the reader answers with Landed now.
  struct Answer {
    SegmentHeader segment;
    bool landed = false;           // false: nobody wanted it, and its bytes are 0
    SegmentChecksum computed = 0;  // of what has landed
  };
  // The reason why no read counts any more.
  struct Failure {
    enum class Cause : uint8_t {
      kSource,      // a place that cannot be read
      kGeneration,  // the buffer is another one by now
      kMemoryLost,  // the way to the source's memory has broken, which says nothing against it
    };
    Cause cause = Cause::kSource;
    std::string detail;
  };

  // `memory` is destroyed before this object, whose lists of destinations it reads until then;
  // afterwards only the destructor is called.
  LocatedReads(RemoteMemory* memory, const Admission& admission, ChecksumAlgorithm checksum)
      : memory_(memory), admission_(admission), checksum_(checksum) {}

  // Reads the segment, which lies at `from`, into `into`, which has its length.
  void Start(const SegmentHeader& segment, absl::Span<const Located::Piece> from,
             std::vector<iovec> into, absl::Time now);
  // The segment is read for nobody, and answered in its turn all the same.
  void Skip(const SegmentHeader& segment);
  // The next answer if its segment was skipped. To be polled after Start, Skip and Finish.
  std::optional<Answer> TakeSkipped();
  // The first one that was started has ended as `read` says. No skipped segment is before it:
  // TakeSkipped has returned nullopt.
  std::variant<Answer, Failure> Finish(const RemoteMemory::Read& read, absl::Time now);
  // OK: the buffer is what the reader was admitted to.
  absl::Status CheckControl(const RemoteMemory::Read::Control& control) const;

  const ControlPlace& control() const { return admission_.control; }
  // True if every segment that was located is answered.
  bool empty() const { return readings_.empty(); }
  // All bytes of the segments that are being read.
  uint64_t bytes_under_way() const;
  // Memory that this keeps for destinations.
  uint64_t extra_bytes() const { return extra_bytes_; }
  // The time when a read ended last, or the first one began after a rest.
  absl::Time moved_at() const { return moved_at_; }
  // In a time of this length nobody has looked whether one has ended.
  void HandlePause(absl::Duration pause) { moved_at_ += pause; }

 private:
  struct Reading {
    SegmentHeader segment;
    bool skipped = false;
    std::vector<iovec> into;
  };

  RemoteMemory* const memory_;
  const Admission admission_;
  const ChecksumAlgorithm checksum_;
  std::deque<Reading> readings_;
  uint64_t extra_bytes_ = 0;  // of all lists of destinations in `readings_`
  absl::Time moved_at_;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_LOCATED_READS_H_
