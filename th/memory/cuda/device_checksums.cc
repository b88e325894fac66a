#include "th/memory/cuda/device_checksums.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "th/memory/cuda/kernels/arguments.h"
#include "th/status/status_macros.h"

namespace th {

static_assert(kLeafBytes == kernels::kLeafBytes);

struct DeviceChecksums::Resources {
  CudaDevice* device;
  std::unique_ptr<DeviceKernels> kernels;
  CudaStream stream;
  DeviceBuffer scratch;
  DeviceList<kernels::LeafRun> runs;
  DeviceList<kernels::CopyPiece> pieces;
  DeviceList<kernels::Checksum128> checksums;
};

// One call of Checksum(): leaves are listed until a list is full, and then summed.
class DeviceChecksums::Work {
 public:
  explicit Work(Resources* resources) : resources_(*resources) {}

  absl::Status AddSegment(absl::Span<const DevicePiece> pieces);
  absl::StatusOr<std::vector<SegmentChecksum>> Finish();

 private:
  // The bytes of pieces from one place on.
  struct Cursor {
    absl::Span<const DevicePiece> pieces;
    uint64_t offset = 0;  // in the first piece

    void SkipEmpty() {
      while (!pieces.empty() && offset == pieces[0].bytes) Next();
    }
    void Next() {
      pieces.remove_prefix(1);
      offset = 0;
    }
    uint64_t address() const { return pieces[0].address() + offset; }
    uint64_t left_in_piece() const { return pieces[0].bytes - offset; }
  };

  bool HasRoom() const {
    return run_count_ < resources_.runs.items().size() &&
           leaf_count_ < resources_.checksums.items().size() &&
           scratch_used_ + kLeafBytes <= resources_.scratch.bytes() &&
           piece_count_ + kLeafBytes <= resources_.pieces.items().size();
  }
  void AddRun(uint64_t address, uint64_t bytes);
  uint64_t AddWholeLeaves(Cursor* cursor, bool ends_segment);
  void GatherLeaf(Cursor* cursor);
  absl::Status Flush();

  Resources& resources_;
  uint64_t run_count_ = 0;
  uint64_t leaf_count_ = 0;
  uint64_t piece_count_ = 0;
  uint64_t scratch_used_ = 0;
  std::vector<uint64_t> segment_leaves_;         // leaves of each segment, in order
  std::vector<SegmentChecksum> leaf_checksums_;  // of all segments, in order
};

// A run goes on in the one before if that one ends with a whole leaf where this one begins.
void DeviceChecksums::Work::AddRun(uint64_t address, uint64_t bytes) {
  const uint64_t leaves = (bytes + kLeafBytes - 1) / kLeafBytes;
  kernels::LeafRun* before = run_count_ == 0 ? nullptr : &resources_.runs.items()[run_count_ - 1];
  if (before != nullptr && before->address + before->bytes == address &&
      before->bytes % kLeafBytes == 0) {
    before->bytes += bytes;
  } else {
    resources_.runs.items()[run_count_++] = {address, bytes, leaf_count_};
  }
  leaf_count_ += leaves;
}

// The leaves at the cursor that lie in its piece as a whole, as many as there is room for. How many
// there were.
uint64_t DeviceChecksums::Work::AddWholeLeaves(Cursor* cursor, bool ends_segment) {
  const uint64_t room = resources_.checksums.items().size() - leaf_count_;
  uint64_t leaves = std::min(cursor->left_in_piece() / kLeafBytes, room);
  uint64_t bytes = leaves * kLeafBytes;
  const uint64_t rest = cursor->left_in_piece() - bytes;
  if (ends_segment && rest > 0 && rest < kLeafBytes && leaves < room) {
    ++leaves;
    bytes += rest;
  }
  if (leaves == 0) return 0;
  AddRun(cursor->address(), bytes);
  cursor->offset += bytes;
  return leaves;
}

// The leaf at the cursor, out of as many pieces as it takes.
void DeviceChecksums::Work::GatherLeaf(Cursor* cursor) {
  const uint64_t begin = scratch_used_;
  while (!cursor->pieces.empty() && scratch_used_ - begin < kLeafBytes) {
    const uint64_t bytes = std::min(cursor->left_in_piece(), kLeafBytes - (scratch_used_ - begin));
    if (bytes > 0) {
      resources_.pieces.items()[piece_count_++] = {cursor->address(), bytes, scratch_used_};
      scratch_used_ += bytes;
      cursor->offset += bytes;
    }
    cursor->SkipEmpty();
  }
  AddRun(resources_.scratch.address() + begin, scratch_used_ - begin);
}

absl::Status DeviceChecksums::Work::AddSegment(absl::Span<const DevicePiece> pieces) {
  Cursor cursor = {pieces};
  uint64_t leaves = 0;
  for (cursor.SkipEmpty(); !cursor.pieces.empty(); cursor.SkipEmpty()) {
    if (!HasRoom()) TH_RETURN_IF_ERROR(Flush());
    const bool ends_segment =
        std::all_of(cursor.pieces.begin() + 1, cursor.pieces.end(),
                    [](const DevicePiece& piece) { return piece.bytes == 0; });
    uint64_t added = AddWholeLeaves(&cursor, ends_segment);
    if (added == 0) {
      GatherLeaf(&cursor);
      added = 1;
    }
    leaves += added;
  }
  segment_leaves_.push_back(leaves);
  return absl::OkStatus();
}

absl::Status DeviceChecksums::Work::Flush() {
  if (leaf_count_ == 0) return absl::OkStatus();
  const CudaStream& stream = resources_.stream;
  if (piece_count_ > 0) {
    TH_RETURN_IF_ERROR(resources_.pieces.ToDevice(stream, piece_count_));
    TH_RETURN_IF_ERROR(resources_.kernels->Gather(
        stream,
        {resources_.pieces.address(), piece_count_, resources_.scratch.address(), scratch_used_}));
  }
  TH_RETURN_IF_ERROR(resources_.runs.ToDevice(stream, run_count_));
  TH_RETURN_IF_ERROR(resources_.kernels->ChecksumLeaves(
      stream,
      {resources_.runs.address(), run_count_, leaf_count_, resources_.checksums.address()}));
  TH_RETURN_IF_ERROR(resources_.checksums.ToHost(stream, leaf_count_));
  TH_RETURN_IF_ERROR(stream.Synchronize());
  for (const kernels::Checksum128& checksum :
       resources_.checksums.items().subspan(0, leaf_count_)) {
    leaf_checksums_.push_back(absl::MakeUint128(checksum.high, checksum.low));
  }
  run_count_ = leaf_count_ = piece_count_ = scratch_used_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SegmentChecksum>> DeviceChecksums::Work::Finish() {
  TH_RETURN_IF_ERROR(Flush());
  std::vector<SegmentChecksum> checksums;
  absl::Span<const SegmentChecksum> left = leaf_checksums_;
  for (const uint64_t leaves : segment_leaves_) {
    checksums.push_back(ChecksumOfLeaves(left.subspan(0, leaves)));
    left.remove_prefix(leaves);
  }
  return checksums;
}

DeviceChecksums::DeviceChecksums(std::unique_ptr<Resources> resources)
    : resources_(std::move(resources)) {}

DeviceChecksums::~DeviceChecksums() {
  // After a failure a copy into our lists may be under way still.
  static_cast<void>(resources_->stream.Synchronize().ok());
}

absl::StatusOr<std::unique_ptr<DeviceChecksums>> DeviceChecksums::Create(CudaDevice* device,
                                                                         Options options) {
  if (options.leaves == 0 || options.gathered_leaves == 0 || options.gathered_pieces < kLeafBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sums on a device work on at least one leaf, one gathered leaf and ",
                     kLeafBytes, " pieces at once"));
  }
  TH_ASSIGN_OR_RETURN(auto kernels, DeviceKernels::Load(device));
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  TH_ASSIGN_OR_RETURN(DeviceBuffer scratch,
                      DeviceBuffer::Allocate(device, options.gathered_leaves * kLeafBytes));
  TH_ASSIGN_OR_RETURN(auto runs, DeviceList<kernels::LeafRun>::Create(device, options.leaves));
  TH_ASSIGN_OR_RETURN(auto pieces,
                      DeviceList<kernels::CopyPiece>::Create(device, options.gathered_pieces));
  TH_ASSIGN_OR_RETURN(auto checksums,
                      DeviceList<kernels::Checksum128>::Create(device, options.leaves));
  return std::unique_ptr<DeviceChecksums>(new DeviceChecksums(std::make_unique<Resources>(
      Resources{device, std::move(kernels), std::move(stream), std::move(scratch), std::move(runs),
                std::move(pieces), std::move(checksums)})));
}

absl::StatusOr<std::vector<SegmentChecksum>> DeviceChecksums::Checksum(
    absl::Span<const std::vector<DevicePiece>> segments) {
  std::vector<DevicePiece> all;
  for (const std::vector<DevicePiece>& pieces : segments)
    all.insert(all.end(), pieces.begin(), pieces.end());
  TH_ASSIGN_OR_RETURN(const PiecesUse use, PiecesUse::Begin(*resources_->device, all));
  Work work(resources_.get());
  absl::Status added;
  for (const std::vector<DevicePiece>& pieces : segments) {
    if (added.ok()) added = work.AddSegment(pieces);
  }
  absl::StatusOr<std::vector<SegmentChecksum>> checksums = added.ok() ? work.Finish() : added;
  // The memory is in use until the device has ended; where all went well it has.
  if (!checksums.ok()) static_cast<void>(resources_->stream.Synchronize().ok());
  // Memory that was freed meanwhile explains every other failure.
  TH_RETURN_IF_ERROR(use.Verify());
  return checksums;
}

}  // namespace th
