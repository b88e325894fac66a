#include "th/transfer/stream/frames.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/weights/shard_layout.h"

namespace th::stream {
namespace {

constexpr uint64_t kMagic = 0x3142554852534E54;  // "TNSRHUB1" read as little-endian
constexpr char kSoftware[] = "tensorhub";
constexpr size_t kOpenBodyBytes = 16 + 8 + 8 + 4 + 8 + 4 + 8 + 16 + 8 + 32;

uint16_t Load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
uint64_t LoadLittle(const void* data, int bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | p[i];
  return value;
}
void StoreLittle(uint64_t value, int bytes, void* data) {
  uint8_t* p = static_cast<uint8_t*>(data);
  for (int i = 0; i < bytes; ++i) p[i] = static_cast<uint8_t>(value >> (8 * i));
}

class Writer {
 public:
  void Number(uint64_t value, int bytes) {
    const size_t at = out_.size();
    out_.resize(at + bytes);
    StoreLittle(value, bytes, out_.data() + at);
  }
  template <size_t N>
  void Bytes(const std::array<uint8_t, N>& bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), N);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads within a body whose length was checked.
class Reader {
 public:
  explicit Reader(absl::string_view body) : rest_(body) {}
  uint64_t Number(int bytes) {
    const uint64_t value = LoadLittle(rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return value;
  }
  template <size_t N>
  std::array<uint8_t, N> Bytes() {
    std::array<uint8_t, N> bytes;
    std::memcpy(bytes.data(), rest_.data(), N);
    rest_.remove_prefix(N);
    return bytes;
  }

 private:
  absl::string_view rest_;
};

std::string Framed(FrameHeader header, absl::string_view body) {
  header.body_bytes = static_cast<uint32_t>(body.size());
  const RawHeader raw = EncodeHeader(header);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(raw.data()), raw.size()),
                      body);
}

absl::string_view Cut(absl::string_view text) { return text.substr(0, kMaxTextBytes); }

uint64_t MaxBodyBytes(FrameType type) {
  if (type == FrameType::kSegment) return kMaxSegmentBytes;
  if (type == FrameType::kLocated) return kMaxLocatedPieces * kLocatedPieceBytes;
  if (type == FrameType::kMapping) return kMaxMappingBytes;
  return kMaxControlBodyBytes;
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bad data frame: ", what));
}

absl::StatusOr<Frame> DecodeHello(const FrameHeader& header, absl::string_view body) {
  if (header.a != kMagic) return Bad("the peer does not speak TensorHub's data protocol");
  Hello hello;
  hello.hello.min_version = static_cast<uint32_t>(header.b);
  hello.hello.max_version = static_cast<uint32_t>(header.b >> 32);
  hello.hello.features = header.c;
  hello.hello.software = std::string(Cut(body));
  return hello;
}

absl::StatusOr<Frame> DecodeOpen(const FrameHeader& header, absl::string_view body) {
  if (body.size() < kOpenBodyBytes) return Bad("Open is too short");
  Reader reader(body);
  Open open;
  open.joins = header.a == 1;
  open.nonce = reader.Bytes<16>();
  CapabilityClaims& claims = open.capability.claims;
  claims.reader = WorkerId(reader.Number(8));
  claims.source.worker = WorkerId(reader.Number(8));
  claims.source.buffer = BufferId(static_cast<uint32_t>(reader.Number(4)));
  claims.version = VersionSequence(reader.Number(8));
  claims.epoch = Epoch(static_cast<uint32_t>(reader.Number(4)));
  claims.assignment = AssignmentId(reader.Number(8));
  open.capability.mac = reader.Bytes<16>();
  open.generation = BufferGeneration(reader.Number(8));
  open.layout.bytes = reader.Bytes<32>();
  return open;
}

absl::StatusOr<Frame> DecodeRefused(const FrameHeader& header, absl::string_view body) {
  // 1 to 16 are the codes of errors; anything else would be no refusal.
  const bool known = header.a >= 1 && header.a <= 16;
  const auto code = known ? static_cast<absl::StatusCode>(header.a) : absl::StatusCode::kUnknown;
  return Refused{absl::Status(code, Cut(body))};
}

absl::StatusOr<Frame> DecodeMapping(const FrameHeader& header, absl::string_view body) {
  if (header.a == 0) return Mapping{absl::OkStatus(), std::string(body)};
  const auto code =
      header.a <= 16 ? static_cast<absl::StatusCode>(header.a) : absl::StatusCode::kUnknown;
  return Mapping{absl::Status(code, Cut(body)), ""};
}

absl::StatusOr<Frame> DecodeAsk(const FrameHeader& header) {
  if (header.a >= header.b) return Bad("Ask for an empty range");
  return Ask{{SegmentIndex(header.a), SegmentIndex(header.b)}};
}

absl::StatusOr<Frame> DecodeAskChecksums(const FrameHeader& header) {
  if (header.a >= header.b) return Bad("AskSums for an empty range");
  return AskChecksums{{SegmentIndex(header.a), SegmentIndex(header.b)}};
}

absl::StatusOr<Frame> DecodeAdmitted(const FrameHeader& header, absl::string_view body) {
  Admitted admitted{.generation = BufferGeneration(header.c), .control = std::nullopt};
  if (body.size() < kControlPlaceBytes) return admitted;
  Reader reader(body);
  ControlPlace control{.address = reader.Number(8)};
  control.life = reader.Number(8);
  control.key = static_cast<uint32_t>(reader.Number(4));
  admitted.control = control;
  return admitted;
}

absl::StatusOr<Frame> DecodeLocated(const FrameHeader& header, absl::string_view body) {
  if (body.size() % kLocatedPieceBytes != 0) return Bad("Located ends within a piece");
  Located located{.segment = SegmentIndex(header.a),
                  .checksum = absl::MakeUint128(header.d, header.b),
                  .generation = BufferGeneration(header.c),
                  .pieces = {}};
  located.pieces.reserve(body.size() / kLocatedPieceBytes);
  Reader reader(body);
  for (size_t at = 0; at < body.size(); at += kLocatedPieceBytes) {
    Located::Piece piece{.address = reader.Number(8)};
    piece.bytes = static_cast<uint32_t>(reader.Number(4));
    piece.key = static_cast<uint32_t>(reader.Number(4));
    if (piece.bytes > kMaxSegmentBytes) return Bad("Located with a piece longer than any segment");
    located.pieces.push_back(piece);
  }
  return located;
}

absl::StatusOr<Frame> DecodeChecksums(const FrameHeader& header, absl::string_view body) {
  if (header.b == 0 || header.b > kMaxChecksumsInFrame) {
    return Bad(
        absl::StrCat("Sums with ", header.b, " sums, which may be 1 to ", kMaxChecksumsInFrame));
  }
  if (body.size() < header.b * kChecksumBytes) return Bad("Sums is too short");
  Checksums checksums{.first = SegmentIndex(header.a), .generation = BufferGeneration(header.c)};
  Reader reader(body);
  for (uint64_t i = 0; i < header.b; ++i) {
    const uint64_t low = reader.Number(8);
    checksums.checksums.push_back(absl::MakeUint128(reader.Number(8), low));
  }
  return checksums;
}

}  // namespace

RawHeader EncodeHeader(const FrameHeader& header) {
  RawHeader raw{};
  raw[0] = static_cast<uint8_t>(header.type);
  raw[1] = header.flags;
  StoreLittle(header.body_bytes, 4, &raw[4]);
  StoreLittle(header.a, 8, &raw[8]);
  StoreLittle(header.b, 8, &raw[16]);
  StoreLittle(header.c, 8, &raw[24]);
  StoreLittle(header.d, 8, &raw[32]);
  return raw;
}

absl::StatusOr<FrameHeader> DecodeHeader(const RawHeader& raw) {
  FrameHeader header;
  header.type = static_cast<FrameType>(raw[0]);
  header.flags = raw[1];
  header.body_bytes = static_cast<uint32_t>(LoadLittle(&raw[4], 4));
  header.a = LoadLittle(&raw[8], 8);
  header.b = LoadLittle(&raw[16], 8);
  header.c = LoadLittle(&raw[24], 8);
  header.d = LoadLittle(&raw[32], 8);
  if (Load16(&raw[2]) != 0) return Bad("reserved bytes are not zero");
  const bool known = header.type >= FrameType::kHello && header.type <= FrameType::kMapping;
  if (!known && (header.flags & kMayBeSkipped) == 0) {
    return Bad(absl::StrCat("unknown type ", raw[0]));
  }
  if (header.body_bytes > MaxBodyBytes(header.type)) {
    return Bad(absl::StrCat("a body of ", header.body_bytes, " bytes in a frame of type ", raw[0]));
  }
  return header;
}

std::string Encode(const Hello& hello) {
  const uint64_t versions = uint64_t{hello.hello.max_version} << 32 | hello.hello.min_version;
  return Framed({.type = FrameType::kHello, .a = kMagic, .b = versions, .c = hello.hello.features},
                Cut(hello.hello.software));
}

std::string Encode(const Open& open) {
  const CapabilityClaims& claims = open.capability.claims;
  Writer body;
  body.Bytes(open.nonce);
  body.Number(claims.reader.value, 8);
  body.Number(claims.source.worker.value, 8);
  body.Number(claims.source.buffer.value, 4);
  body.Number(claims.version.value, 8);
  body.Number(claims.epoch.value, 4);
  body.Number(claims.assignment.value, 8);
  body.Bytes(open.capability.mac);
  body.Number(open.generation.value, 8);
  body.Bytes(open.layout.bytes);
  return Framed({.type = FrameType::kOpen, .a = open.joins ? uint64_t{1} : 0}, body.Take());
}

std::string Encode(const Admitted& admitted) {
  Writer body;
  if (admitted.control.has_value()) {
    body.Number(admitted.control->address, 8);
    body.Number(admitted.control->life, 8);
    body.Number(admitted.control->key, 4);
  }
  return Framed({.type = FrameType::kAdmitted, .c = admitted.generation.value}, body.Take());
}

std::string Encode(const Refused& refused) {
  return Framed({.type = FrameType::kRefused, .a = static_cast<uint64_t>(refused.status.code())},
                Cut(refused.status.message()));
}

std::string Encode(const Ask& ask) {
  return Framed({.type = FrameType::kAsk, .a = ask.range.begin.value, .b = ask.range.end.value},
                "");
}

std::string Encode(const Alive&) { return Framed({.type = FrameType::kAlive}, ""); }

std::string Encode(const Close& close) {
  return Framed({.type = FrameType::kClose}, Cut(close.why));
}

std::string Encode(const Finish&) {
  return Framed({.type = FrameType::kFinish, .flags = kMayBeSkipped}, "");
}

std::string Encode(const AskChecksums& ask) {
  return Framed(
      {.type = FrameType::kAskChecksums, .a = ask.range.begin.value, .b = ask.range.end.value}, "");
}

std::string Encode(const Checksums& checksums) {
  Writer body;
  for (const SegmentChecksum checksum : checksums.checksums) {
    body.Number(absl::Uint128Low64(checksum), 8);
    body.Number(absl::Uint128High64(checksum), 8);
  }
  return Framed({.type = FrameType::kChecksums,
                 .a = checksums.first.value,
                 .b = checksums.checksums.size(),
                 .c = checksums.generation.value},
                body.Take());
}

std::string Encode(const Memory& memory) {
  return Framed({.type = FrameType::kMemory}, memory.words);
}

std::string Encode(const Located& located) {
  Writer body;
  for (const Located::Piece& piece : located.pieces) {
    body.Number(piece.address, 8);
    body.Number(piece.bytes, 4);
    body.Number(piece.key, 4);
  }
  return Framed({.type = FrameType::kLocated,
                 .a = located.segment.value,
                 .b = absl::Uint128Low64(located.checksum),
                 .c = located.generation.value,
                 .d = absl::Uint128High64(located.checksum)},
                body.Take());
}

std::string Encode(const Landed& landed) {
  return Framed({.type = FrameType::kLanded, .a = landed.segment.value, .b = landed.bytes}, "");
}

std::string Encode(const AskMapping&) { return Framed({.type = FrameType::kAskMapping}, ""); }

std::string Encode(const Mapping& mapping) {
  const bool ok = mapping.status.ok();
  return Framed({.type = FrameType::kMapping, .a = static_cast<uint64_t>(mapping.status.code())},
                ok ? absl::string_view(mapping.words) : Cut(mapping.status.message()));
}

RawHeader EncodeSegmentHeader(const SegmentHeader& segment) {
  return EncodeHeader({.type = FrameType::kSegment,
                       .body_bytes = segment.bytes,
                       .a = segment.segment.value,
                       .b = absl::Uint128Low64(segment.checksum),
                       .c = segment.generation.value,
                       .d = absl::Uint128High64(segment.checksum)});
}

absl::StatusOr<Frame> DecodeFrame(const FrameHeader& header, absl::string_view body) {
  switch (header.type) {
    case FrameType::kHello:
      return DecodeHello(header, body);
    case FrameType::kOpen:
      return DecodeOpen(header, body);
    case FrameType::kAdmitted:
      return DecodeAdmitted(header, body);
    case FrameType::kRefused:
      return DecodeRefused(header, body);
    case FrameType::kAsk:
      return DecodeAsk(header);
    case FrameType::kSegment:
      return SegmentHeader{SegmentIndex(header.a), header.body_bytes,
                           absl::MakeUint128(header.d, header.b), BufferGeneration(header.c)};
    case FrameType::kAlive:
      return Alive{};
    case FrameType::kClose:
      return Close{std::string(Cut(body))};
    case FrameType::kFinish:
      return Finish{};
    case FrameType::kAskChecksums:
      return DecodeAskChecksums(header);
    case FrameType::kChecksums:
      return DecodeChecksums(header, body);
    case FrameType::kMemory:
      return Memory{std::string(body)};
    case FrameType::kLocated:
      return DecodeLocated(header, body);
    case FrameType::kLanded:
      return Landed{SegmentIndex(header.a), header.b};
    case FrameType::kAskMapping:
      return AskMapping{};
    case FrameType::kMapping:
      return DecodeMapping(header, body);
  }
  return Skipped{};
}

absl::StatusOr<std::optional<Frame>> FrameParser::Next() {
  if (buffer_.size() < kFrameHeaderBytes) return std::nullopt;
  RawHeader raw;
  std::memcpy(raw.data(), buffer_.data(), raw.size());
  TH_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(raw));
  if (header.type == FrameType::kSegment || header.type == FrameType::kLocated ||
      header.type == FrameType::kMapping) {
    return Bad("a segment where only requests are expected");
  }
  const size_t bytes = kFrameHeaderBytes + header.body_bytes;
  if (buffer_.size() < bytes) return std::nullopt;
  const absl::string_view body =
      absl::string_view(buffer_).substr(kFrameHeaderBytes, header.body_bytes);
  TH_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(header, body));
  buffer_.erase(0, bytes);
  return std::optional<Frame>(std::move(frame));
}

ProtocolHello OwnHello() {
  return {.min_version = kMinDataProtocolVersion,
          .max_version = kDataProtocolVersion,
          .features = kListsChecksums | kAnswersAskMapping,
          .software = kSoftware};
}

}  // namespace th::stream
