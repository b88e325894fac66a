// The frames of a data connection: what docs/protocol/data.md draws. Pure: bytes in, values
// out.
//
// Every frame is a header of 40 bytes, little-endian, and a body of header.body_bytes:
//
//   0 type   1 flags   2 zero (2 bytes)   4 body_bytes (4)   8 a (8)   16 b (8)   24 c (8)   32 d
//   (8)
//
// The body of a Segment is its payload and goes straight to its destination; every other body is at
// most kMaxControlBodyBytes. A frame of an unknown type is skipped when its flag says that it may
// be.
#ifndef TH_TRANSFER_STREAM_FRAMES_H_
#define TH_TRANSFER_STREAM_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/served_transfers.h"
#include "th/protocol/capability.h"
#include "th/protocol/messages.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"

namespace th::stream {

inline constexpr size_t kFrameHeaderBytes = 40;
inline constexpr uint32_t kMaxControlBodyBytes = 4096;
// A Located frame with the places of a segment's pieces: 16 bytes each.
inline constexpr size_t kMaxLocatedPieces = 4096;
inline constexpr size_t kLocatedPieceBytes = 16;
inline constexpr size_t kControlPlaceBytes = 20;
inline constexpr size_t kMaxTextBytes = 1024;  // of a reason or a software's name
inline constexpr uint32_t kDataProtocolVersion = 1;
inline constexpr uint32_t kMinDataProtocolVersion = 1;

enum class FrameType : uint8_t {
  kHello = 1,
  kOpen = 2,
  kAdmitted = 3,
  kRefused = 4,
  kAsk = 5,
  kSegment = 6,
  kAlive = 7,
  kClose = 8,
  kFinish = 9,
  kAskChecksums = 10,
  kChecksums = 11,
  kMemory = 12,
  kLocated = 13,
  kLanded = 14,
  kAskMapping = 15,
  kMapping = 16,
};
inline constexpr uint8_t kMayBeSkipped = 1;  // a flag
// A bit of Hello's features: a source with it answers AskChecksums.
inline constexpr uint64_t kListsChecksums = 1;
// Another bit: a source with it answers AskMapping.
inline constexpr uint64_t kAnswersAskMapping = 2;
// The most that a Mapping says: the places of a shard whose every tensor lies by itself.
inline constexpr uint32_t kMaxMappingBytes = 4 << 20;
inline constexpr size_t kChecksumBytes = 16;
inline constexpr size_t kMaxChecksumsInFrame = kMaxControlBodyBytes / kChecksumBytes;

struct FrameHeader {
  FrameType type = FrameType::kAlive;  // possibly unknown, when it may be skipped
  uint8_t flags = 0;
  uint32_t body_bytes = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};
using RawHeader = std::array<uint8_t, kFrameHeaderBytes>;

RawHeader EncodeHeader(const FrameHeader& header);
// INVALID_ARGUMENT: an unknown type that may not be skipped, a body above its limit.
absl::StatusOr<FrameHeader> DecodeHeader(const RawHeader& raw);

// First, both ways.
struct Hello {
  ProtocolHello hello;
};
// The reader's wish. `joins`: a further connection of a pull that was admitted already.
struct Open {
  bool joins = false;
  PullNonce nonce{};
  Capability capability;
  BufferGeneration generation;
  Digest layout;
};
// The place of the buffer's ControlBlock in the source's memory, the key to read it with, and the
// `life` that it has.
struct ControlPlace {
  uint64_t address = 0;
  uint64_t life = 0;
  uint32_t key = 0;
  friend bool operator==(const ControlPlace&, const ControlPlace&) = default;
};
struct Admitted {
  BufferGeneration generation;
  std::optional<ControlPlace> control;  // of a source whose memory is read
};
struct Refused {
  absl::Status status;
};
// The reader asks for segments.
struct Ask {
  SegmentRange range;
};
// The header before a segment's payload.
struct SegmentHeader {
  SegmentIndex segment;
  uint32_t bytes = 0;
  SegmentChecksum checksum = 0;
  BufferGeneration generation;
};
struct Alive {};
struct Close {
  std::string why;
};
// The reader wants no more segments than the source has begun to send; the source answers with
// Close. May be skipped.
struct Finish {};
// The reader asks for the sums of these segments, once a connection. Only of a source with
// kListsChecksums.
struct AskChecksums {
  SegmentRange range;
};
// The next ones of these, as they become known: at least one, at most kMaxChecksumsInFrame.
struct Checksums {
  SegmentIndex first;
  BufferGeneration generation;
  std::vector<SegmentChecksum> checksums;
};
// The words of the two ends of a transport that reads memory (remote_memory.h): the source says
// them right after its Hello, the reader in answer.
struct Memory {
  std::string words;  // at most kMaxControlBodyBytes
};
// The places of a segment in the source's memory, instead of its payload. The pieces are in the
// order of its bytes; the reader says Landed once it reads them no more.
struct Located {
  struct Piece {
    uint64_t address = 0;
    uint32_t bytes = 0;
    uint32_t key = 0;  // to read it with, where the transport has keys
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  SegmentIndex segment;
  SegmentChecksum checksum = 0;
  BufferGeneration generation;
  std::vector<Piece> pieces;  // at most kMaxLocatedPieces
};
// The reader is done with the segment that was located first of those that it has not answered.
// `bytes`: what it has taken, 0 where it did not want them any more.
struct Landed {
  SegmentIndex segment;
  uint64_t bytes = 0;
};
// The reader wants to use the whole shard where it lies in the source's memory. Only of a source
// with kAnswersAskMapping, and of one at a time.
struct AskMapping {};
// The answer: where that is, or why it cannot be.
struct Mapping {
  absl::Status status;
  std::string words;  // when OK, as ServedMemory::Map says them (remote_memory.h)
};
struct Skipped {};

using Frame =
    std::variant<Hello, Open, Admitted, Refused, Ask, SegmentHeader, Alive, Close, Finish,
                 AskChecksums, Checksums, Memory, Located, Landed, AskMapping, Mapping, Skipped>;

std::string Encode(const Hello& hello);
std::string Encode(const Open& open);
std::string Encode(const Admitted& admitted);
std::string Encode(const Refused& refused);
std::string Encode(const Ask& ask);
std::string Encode(const Alive& alive);
std::string Encode(const Close& close);
std::string Encode(const Finish& finish);
std::string Encode(const AskChecksums& ask);
std::string Encode(const Checksums& checksums);
std::string Encode(const Memory& memory);
std::string Encode(const Located& located);
std::string Encode(const Landed& landed);
std::string Encode(const AskMapping& ask);
std::string Encode(const Mapping& mapping);
RawHeader EncodeSegmentHeader(const SegmentHeader& segment);

// `body` has header.body_bytes; empty for a Segment. INVALID_ARGUMENT naming the frame. Bodies may
// be longer than this version knows: what follows is ignored.
absl::StatusOr<Frame> DecodeFrame(const FrameHeader& header, absl::string_view body);

// Cuts a stream of control frames. Holds at most one frame and what was appended.
class FrameParser {
 public:
  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next whole frame; nullopt: more bytes are needed. An error is final. A Segment is an error,
  // as its payload belongs elsewhere, and so are Located and Mapping: they come from sources only.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  std::string buffer_;
};

ProtocolHello OwnHello();

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_FRAMES_H_
