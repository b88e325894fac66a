// The canonical encoding of a layout, version 2 (1 had one box a name; no release wrote it).
// Numbers are unsigned LEB128 ("varint") unless they are called a byte; nothing is padded.
//
//   magic          4 bytes "THSL"
//   version        1 byte, 2
//   checksum       1 byte, ChecksumAlgorithm
//   segment_bytes  varint
//   tensor_count   varint
//   then a tensor, in canonical order:
//     flags        1 byte: 1 = alias, 2 = slice of a larger tensor, the others 0
//     dtype        1 byte, DType
//     shared       varint, bytes that the name shares with the one before (as many as do)
//     rest         varint and as many bytes, the rest of the name
//     dimensions   1 byte
//     shape        a varint a dimension
//     owner        varint, index of the tensor or box whose storage it shares; if it is an alias
//     global_shape a varint a dimension; if it is a slice
//     slice_begin  a varint a dimension; if it is a slice
//     bytes        varint; if the dtype is opaque
//
// One layout has one encoding: a decoder builds the layout and compares digests, so other encodings
// of the same content (overlong varints, shorter shared prefixes, another order) are refused.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/weights/shard_layout.h"

namespace th {
namespace {

constexpr char kMagic[] = "THSL";
constexpr uint8_t kVersion = 2;
constexpr uint8_t kAliasFlag = 1;
constexpr uint8_t kSliceFlag = 2;
// Flags, dtype, shared, rest and dimensions: the least that a tensor takes.
constexpr uint64_t kMinTensorBytes = 5;

void AppendByte(std::string& out, uint8_t byte) { out.push_back(static_cast<char>(byte)); }

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) AppendByte(out, static_cast<uint8_t>(value | 0x80));
  AppendByte(out, static_cast<uint8_t>(value));
}

void AppendExtents(std::string& out, const std::vector<int64_t>& extents) {
  for (const int64_t extent : extents) AppendVarint(out, static_cast<uint64_t>(extent));
}

void AppendName(std::string& out, absl::string_view previous, absl::string_view name) {
  const size_t shared = static_cast<size_t>(
      std::mismatch(previous.begin(), previous.end(), name.begin(), name.end()).first -
      previous.begin());
  AppendVarint(out, shared);
  AppendVarint(out, name.size() - shared);
  absl::StrAppend(&out, name.substr(shared));
}

// An alias whose owner is known by its position so far.
struct DecodedTensor {
  TensorSpec spec;
  std::optional<uint64_t> owner;
};

class Decoder {
 public:
  explicit Decoder(absl::string_view encoded) : rest_(encoded) {}

  absl::StatusOr<ShardLayout::Spec> Decode() {
    ShardLayout::Spec spec;
    TH_ASSIGN_OR_RETURN(const uint64_t tensor_count, DecodeHead(spec));
    spec.tensors.reserve(tensor_count);
    std::vector<std::pair<uint64_t, uint64_t>> aliases;
    while (spec.tensors.size() < tensor_count) {
      const absl::string_view previous =
          spec.tensors.empty() ? absl::string_view() : spec.tensors.back().name;
      TH_ASSIGN_OR_RETURN(DecodedTensor tensor, DecodeTensor(previous));
      if (tensor.owner.has_value()) aliases.emplace_back(spec.tensors.size(), *tensor.owner);
      spec.tensors.push_back(std::move(tensor.spec));
    }
    if (!rest_.empty()) return Refused(absl::StrCat(rest_.size(), " bytes too many"));
    TH_RETURN_IF_ERROR(NameOwners(aliases, spec.tensors));
    return spec;
  }

 private:
  static absl::Status Refused(absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("not an encoded shard layout: ", reason));
  }

  // Returns the number of tensors.
  absl::StatusOr<uint64_t> DecodeHead(ShardLayout::Spec& spec) {
    if (!absl::StartsWith(rest_, kMagic)) return Refused("wrong first bytes");
    rest_.remove_prefix(sizeof(kMagic) - 1);
    TH_ASSIGN_OR_RETURN(const uint8_t version, TakeByte());
    if (version != kVersion) return Refused(absl::StrCat("version ", version, " is unknown"));
    TH_ASSIGN_OR_RETURN(const uint8_t checksum, TakeByte());
    spec.checksum = static_cast<ChecksumAlgorithm>(checksum);
    TH_ASSIGN_OR_RETURN(spec.segment_bytes, TakeVarint());
    TH_ASSIGN_OR_RETURN(const uint64_t tensor_count, TakeVarint());
    if (tensor_count > kMaxTensors || tensor_count > rest_.size() / kMinTensorBytes) {
      return Refused(absl::StrCat(tensor_count, " tensors cannot be in it"));
    }
    return tensor_count;
  }

  absl::StatusOr<DecodedTensor> DecodeTensor(absl::string_view previous_name) {
    DecodedTensor tensor;
    TH_ASSIGN_OR_RETURN(const uint8_t flags, TakeByte());
    if ((flags & ~(kAliasFlag | kSliceFlag)) != 0) return Refused("unknown flags of a tensor");
    TH_ASSIGN_OR_RETURN(const uint8_t dtype, TakeByte());
    tensor.spec.dtype = static_cast<DType>(dtype);
    TH_ASSIGN_OR_RETURN(tensor.spec.name, TakeName(previous_name));
    TH_ASSIGN_OR_RETURN(const uint8_t dimensions, TakeByte());
    if (dimensions > kMaxTensorDimensions) return Refused("too many dimensions of a tensor");
    TH_ASSIGN_OR_RETURN(tensor.spec.shape, TakeExtents(dimensions));
    if ((flags & kAliasFlag) != 0) {
      TH_ASSIGN_OR_RETURN(tensor.owner, TakeVarint());
    }
    if ((flags & kSliceFlag) != 0) {
      TH_ASSIGN_OR_RETURN(tensor.spec.global_shape, TakeExtents(dimensions));
      TH_ASSIGN_OR_RETURN(tensor.spec.slice_begin, TakeExtents(dimensions));
    }
    if (tensor.spec.dtype == DType::kOpaque) {
      TH_ASSIGN_OR_RETURN(tensor.spec.bytes, TakeVarint());
    }
    return tensor;
  }

  absl::Status NameOwners(const std::vector<std::pair<uint64_t, uint64_t>>& aliases,
                          std::vector<TensorSpec>& tensors) {
    for (const auto& [alias, owner] : aliases) {
      if (owner >= tensors.size()) return Refused("an alias of a tensor that is not there");
      TH_RETURN_IF_ERROR(CountName(tensors[owner].name.size()));
      tensors[alias].alias_of = tensors[owner].name;
    }
    return absl::OkStatus();
  }

  // Shared prefixes let few bytes stand for many: what they stand for is bounded here.
  absl::Status CountName(uint64_t bytes) {
    name_bytes_ += bytes;
    return name_bytes_ <= kMaxLayoutNameBytes ? absl::OkStatus() : Refused("too long names");
  }

  absl::StatusOr<std::string> TakeName(absl::string_view previous) {
    TH_ASSIGN_OR_RETURN(const uint64_t shared, TakeVarint());
    TH_ASSIGN_OR_RETURN(const uint64_t rest, TakeVarint());
    if (shared > previous.size() || rest > rest_.size()) return Refused("a name is cut off");
    if (shared + rest > kMaxTensorNameBytes) return Refused("a name is too long");
    TH_RETURN_IF_ERROR(CountName(shared + rest));
    std::string name = absl::StrCat(previous.substr(0, shared), rest_.substr(0, rest));
    rest_.remove_prefix(rest);
    return name;
  }

  absl::StatusOr<std::vector<int64_t>> TakeExtents(uint8_t dimensions) {
    dimensions_ += dimensions;
    if (dimensions_ > kMaxExtents) return Refused("too many dimensions in all");
    std::vector<int64_t> extents(dimensions);
    for (int64_t& extent : extents) {
      TH_ASSIGN_OR_RETURN(const uint64_t value, TakeVarint());
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
        return Refused("a dimension is too large");
      }
      extent = static_cast<int64_t>(value);
    }
    return extents;
  }

  absl::StatusOr<uint8_t> TakeByte() {
    if (rest_.empty()) return Refused("it is cut off");
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  absl::StatusOr<uint64_t> TakeVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      TH_ASSIGN_OR_RETURN(const uint8_t byte, TakeByte());
      const uint64_t payload = byte & 0x7fu;
      if (shift == 63 && payload > 1) break;
      value |= payload << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Refused("a number is too large");
  }

  // A shape, a global shape and a place in it, each.
  static constexpr uint64_t kMaxExtents = 3 * kMaxLayoutDimensions;

  absl::string_view rest_;
  uint64_t name_bytes_ = 0;
  uint64_t dimensions_ = 0;
};

}  // namespace

std::string ShardLayout::Encode() const {
  std::string out = kMagic;
  AppendByte(out, kVersion);
  AppendByte(out, static_cast<uint8_t>(checksum_));
  AppendVarint(out, segment_bytes_);
  AppendVarint(out, tensors_.size());
  absl::string_view previous;
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec& tensor = tensors_[i];
    const bool alias = !tensor.alias_of.empty();
    const bool slice = tensor.global_shape != tensor.shape;
    AppendByte(out, (alias ? kAliasFlag : 0) | (slice ? kSliceFlag : 0));
    AppendByte(out, static_cast<uint8_t>(tensor.dtype));
    AppendName(out, previous, tensor.name);
    AppendByte(out, static_cast<uint8_t>(tensor.shape.size()));
    AppendExtents(out, tensor.shape);
    if (alias) AppendVarint(out, storages_[storage_of_[i]].tensor);
    if (slice) AppendExtents(out, tensor.global_shape);
    if (slice) AppendExtents(out, tensor.slice_begin);
    if (tensor.dtype == DType::kOpaque) AppendVarint(out, tensor.bytes);
    previous = tensor.name;
  }
  return out;
}

absl::StatusOr<ShardLayout> ShardLayout::Decode(absl::string_view encoded) {
  if (encoded.size() > kMaxLayoutBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an encoded shard layout of ", encoded.size(),
                                                   " bytes; at most ", kMaxLayoutBytes,
                                                   " are allowed"));
  }
  TH_ASSIGN_OR_RETURN(Spec spec, Decoder(encoded).Decode());
  absl::StatusOr<ShardLayout> layout = Build(std::move(spec));
  if (!layout.ok()) return absl::InvalidArgumentError(layout.status().message());
  if (layout->digest() != Sha256(encoded)) {
    return absl::InvalidArgumentError("an encoded shard layout is not in its canonical form");
  }
  return layout;
}

}  // namespace th
