#include "th/transfer/test_peers.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/shared_memory.h"
#include "th/weights/shard_layout.h"

namespace th::testing {
namespace {

CapabilityKey SomeKey() {
  CapabilityKey key;
  key.bytes.fill(17);
  return key;
}

}  // namespace

void AwaitOrFail(absl::Mutex& mu, const absl::Condition& condition, const char* what) {
  if (!mu.AwaitWithTimeout(condition, kPatience)) ADD_FAILURE() << "never happened: " << what;
}

// ---- TestMemory

TestMemory::TestMemory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (!shared_ || bytes < kMinSharedBytes) {
    data_ = new char[bytes]();
    return;
  }
  const size_t blocks = (bytes + kArenaAlignment - 1) / kArenaAlignment;
  absl::StatusOr<std::byte*> mapped = MapSharedMemory(blocks * kArenaAlignment);
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  data_ = reinterpret_cast<char*>(*mapped);
}

TestMemory::~TestMemory() {
  if (!UnmapSharedMemory(reinterpret_cast<std::byte*>(data_))) delete[] data_;
}

TestMemory& TestMemory::operator=(TestMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// ---- TestShard

TestShard::TestShard(const Spec& spec) {
  ShardLayout::Spec layout{.segment_bytes = spec.segment_bytes, .checksum = spec.checksum};
  for (size_t i = 0; i < spec.tensor_bytes.size(); ++i) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("tensor.", i);
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(spec.tensor_bytes[i])};
    layout.tensors.push_back(std::move(tensor));
  }
  absl::StatusOr<ShardLayout> built = ShardLayout::Build(std::move(layout));
  EXPECT_TRUE(built.ok()) << built.status();
  layout_ = std::make_shared<const ShardLayout>(*std::move(built));
  std::vector<void*> storages;
  for (const ShardLayout::Storage& storage : layout_->storages()) {
    memory_.emplace_back(storage.bytes);
  }
  for (auto& memory : memory_) storages.push_back(memory.data());
  store_ = std::make_shared<SegmentStore>(layout_, std::move(storages));
}

void TestShard::FillWith(uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (auto& memory : memory_) {
    for (char& byte : memory) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<char>(state >> 56);
    }
  }
}

std::string TestShard::BytesOf(SegmentIndex segment) const {
  std::string bytes;
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    bytes.append(memory_[piece.storage].data() + piece.offset, piece.bytes);
  }
  return bytes;
}

void TestShard::Corrupt(SegmentIndex segment) {
  const SegmentPieces pieces = layout_->PiecesOf(segment);
  memory_[pieces[0].storage][pieces[0].offset] ^= 4;
}

SegmentSum TestShard::SumOf(SegmentIndex segment) const {
  const std::string bytes = BytesOf(segment);
  return SumBytes(bytes.data(), bytes.size());
}

Digest TestShard::Root() const {
  std::vector<SegmentSum> sums;
  for (uint64_t i = 0; i < segment_count(); ++i) sums.push_back(SumOf(SegmentIndex(i)));
  return RootOfSums(sums);
}

// ---- TestHolder

TestHolder::TestHolder(std::shared_ptr<SegmentStore> store, BufferGeneration generation)
    : store_(std::move(store)), generation_(generation), key_(SomeKey()) {}

Capability TestHolder::Mint() const {
  return MintCapability(key_, {.reader = kReaderWorker,
                               .source = {worker_, kBuffer},
                               .version = VersionSequence(1),
                               .epoch = Epoch(1),
                               .assignment = AssignmentId(1)});
}

PullTarget TestHolder::Target(const Endpoint& endpoint,
                              std::shared_ptr<const ShardLayout> layout) const {
  return {.endpoint = endpoint,
          .source = {worker_, kBuffer},
          .generation = generation_,
          .capability = Mint(),
          .layout = std::move(layout)};
}

Admission TestHolder::Decide(const AdmissionRequest& request) {
  const absl::Status valid = VerifyCapability(key_, request.capability);
  if (!valid.ok()) return {.status = valid};
  absl::MutexLock lock(&mu_);
  admitted_.push_back(request.transfer);
  return {.store = store_, .generation = generation_};
}

void TestHolder::OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) {
  if (!hold_) return decide(Decide(request));
  absl::MutexLock lock(&mu_);
  undecided_.emplace_back(request, std::move(decide));
}

void TestHolder::DecideAll() {
  std::vector<std::pair<AdmissionRequest, std::function<void(Admission)>>> undecided;
  {
    absl::MutexLock lock(&mu_);
    undecided.swap(undecided_);
  }
  for (auto& [request, decide] : undecided) decide(Decide(request));
}

void TestHolder::AwaitUndecided(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto enough = [&]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return undecided_.size() >= count; };
  AwaitOrFail(mu_, absl::Condition(&enough), "an admission is asked for");
}

void TestHolder::OnReaderBytes(TransferId, uint64_t bytes_sent_so_far) {
  absl::MutexLock lock(&mu_);
  bytes_told_ = std::max(bytes_told_, bytes_sent_so_far);
}

void TestHolder::OnReaderReleased(TransferId transfer, uint64_t) {
  absl::MutexLock lock(&mu_);
  released_.push_back(transfer);
}

void TestHolder::AwaitReleased(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto enough = [&]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return released_.size() >= count; };
  AwaitOrFail(mu_, absl::Condition(&enough), "a reader is released");
}

std::vector<TransferId> TestHolder::admitted() const {
  absl::MutexLock lock(&mu_);
  return admitted_;
}

std::vector<TransferId> TestHolder::released() const {
  absl::MutexLock lock(&mu_);
  return released_;
}

uint64_t TestHolder::bytes_told() const {
  absl::MutexLock lock(&mu_);
  return bytes_told_;
}

// ---- TestSink

void TestSink::OnSums(SegmentIndex first, absl::Span<const SegmentSum> sums) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  EXPECT_EQ(first.value, sums_.size());
  sums_.insert(sums_.end(), sums.begin(), sums.end());
}

void TestSink::OnAdmitted(BufferGeneration generation, bool lists_sums) {
  absl::MutexLock lock(&mu_);
  lists_sums_ = lists_sums;
  calls_after_closed_ |= closed_.has_value();
  admitted_ = generation;
}

bool TestSink::OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  ++begun_;
  if (discard_.Contains(segment)) return false;
  into_->store()->AppendPieces(segment, iov);
  return true;
}

void TestSink::OnSegment(SegmentIndex segment, SegmentSum sent, SegmentSum computed) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  segments_.emplace_back(segment, sent == computed);
}

void TestSink::OnAlive() {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  ++alive_;
}

void TestSink::OnClosed(SourceFailure failure, std::string detail) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  closed_.emplace(failure, std::move(detail));
}

BufferGeneration TestSink::AwaitAdmitted() {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return admitted_.has_value() || closed_.has_value();
  };
  AwaitOrFail(mu_, absl::Condition(&done), "the pull is admitted");
  if (!admitted_.has_value()) ADD_FAILURE() << "closed: " << (closed_ ? closed_->second : "");
  return admitted_.value_or(BufferGeneration(0));
}

void TestSink::AwaitBegun(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return begun_ >= count; };
  AwaitOrFail(mu_, absl::Condition(&done), "the segments begin");
}

void TestSink::AwaitSegments(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return segments_.size() >= count || closed_.has_value();
  };
  AwaitOrFail(mu_, absl::Condition(&done), "the segments arrive");
  EXPECT_GE(segments_.size(), count) << (closed_ ? closed_->second : "not closed");
}

std::vector<SegmentSum> TestSink::AwaitSums(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return sums_.size() >= count || closed_.has_value();
  };
  AwaitOrFail(mu_, absl::Condition(&done), "the sums arrive");
  EXPECT_GE(sums_.size(), count) << (closed_ ? closed_->second : "not closed");
  return sums_;
}

bool TestSink::lists_sums() const {
  absl::MutexLock lock(&mu_);
  return lists_sums_;
}

void TestSink::AwaitAlive(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return alive_ >= count; };
  AwaitOrFail(mu_, absl::Condition(&done), "the source says that it is alive");
}

std::pair<SourceFailure, std::string> TestSink::AwaitClosed() {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_.has_value(); };
  AwaitOrFail(mu_, absl::Condition(&done), "the pull is closed");
  return closed_.value_or(std::make_pair(SourceFailure::kConnect, std::string("never closed")));
}

std::vector<std::pair<SegmentIndex, bool>> TestSink::segments() const {
  absl::MutexLock lock(&mu_);
  return segments_;
}

bool TestSink::calls_after_closed() const {
  absl::MutexLock lock(&mu_);
  return calls_after_closed_;
}

bool TestSink::closed() const {
  absl::MutexLock lock(&mu_);
  return closed_.has_value();
}

}  // namespace th::testing
