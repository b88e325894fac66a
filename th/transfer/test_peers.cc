#include "th/transfer/test_peers.h"

#include <algorithm>
#include <atomic>
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

TransportLimits PatientLimits() {
  TransportLimits limits;
  limits.connect_timeout = limits.admission_timeout = limits.admission_silence = kPatience;
  limits.own_copy_timeout = 3 * kPatience;
  return limits;
}

void AwaitOrFail(absl::Mutex& mu, const absl::Condition& condition, const char* what) {
  if (!mu.AwaitWithTimeout(condition, kPatience)) ADD_FAILURE() << "never happened: " << what;
}

// ---- TestMemory

TestMemory::TestMemory(size_t bytes, TestDevice* device)
    : owned_(true), bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  if (device_ != nullptr) {
    data_ = static_cast<char*>(device_->Allocate(bytes));
    return;
  }
  if (!shared_ || bytes < kMinSharedBytes) {
    data_ = new char[bytes]();
    return;
  }
  const size_t blocks = (bytes + kArenaAlignment - 1) / kArenaAlignment;
  absl::StatusOr<std::byte*> mapped = MapSharedMemory(blocks * kArenaAlignment);
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  data_ = reinterpret_cast<char*>(*mapped);
}

TestMemory TestMemory::In(const TestMemory& arena, size_t offset, size_t bytes) {
  TestMemory within;
  within.data_ = arena.data_ + offset;
  within.bytes_ = bytes;
  within.device_ = arena.device_;
  return within;
}

TestMemory::~TestMemory() {
  if (!owned_) return;
  if (device_ != nullptr) {
    if (data_ != nullptr) device_->Free(data_);
    return;
  }
  if (!UnmapSharedMemory(reinterpret_cast<std::byte*>(data_))) delete[] data_;
}

TestMemory& TestMemory::operator=(TestMemory&& other) noexcept {
  std::swap(owned_, other.owned_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

std::string TestMemory::Read(size_t offset, size_t bytes) const {
  if (device_ == nullptr || bytes == 0) return std::string(data_ + offset, bytes);
  std::string read(bytes, 0);
  device_->Read(data_ + offset, absl::MakeSpan(read.data(), read.size()));
  return read;
}

void TestMemory::Write(size_t offset, absl::Span<const char> bytes) const {
  if (bytes.empty()) return;
  if (device_ != nullptr) return device_->Write(data_ + offset, bytes);
  std::memcpy(data_ + offset, bytes.data(), bytes.size());
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
  if (spec.odd_gaps) {
    AllocateWithGaps(spec);
  } else {
    Allocate(spec);
  }
  StorageMemory memory;
  for (const TestMemory& added : memory_) {
    MemoryRegion region{.address = added.data(), .bytes = added.size()};
    if (added.device() != nullptr && added.size() > 0) {
      region.kind = MemoryKind::kDevice;
      region.device = added.device()->pci_address();
    }
    memory.regions.push_back(std::move(region));
  }
  if (spec.device != nullptr) {
    auto registered = spec.device->devices()->Register(memory.regions);
    EXPECT_TRUE(registered.ok()) << registered.status();
    device_side_ = *std::move(registered);
    memory.device = device_side_;
  }
  store_ = std::make_shared<SegmentStore>(layout_, std::move(memory));
}

void TestShard::Allocate(const Spec& spec) {
  for (const ShardLayout::Storage& storage : layout_->storages()) {
    const bool on_host = spec.every_other_on_host && memory_.size() % 2 == 0;
    memory_.emplace_back(storage.bytes, on_host ? nullptr : spec.device);
  }
}

void TestShard::AllocateWithGaps(const Spec& spec) {
  constexpr size_t kHost = 0, kDevice = 1;
  size_t ends[] = {1, 1};
  for (const ShardLayout::Storage& storage : layout_->storages()) {
    const bool on_host =
        spec.device == nullptr || (spec.every_other_on_host && places_.size() % 2 == 0);
    size_t& end = ends[on_host ? kHost : kDevice];
    places_.push_back({on_host ? kHost : kDevice, end});
    end += storage.bytes + 1 + end % 11;
  }
  arenas_.emplace_back(ends[kHost]);
  if (spec.device != nullptr) arenas_.emplace_back(ends[kDevice], spec.device);
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto& [arena, offset] = places_[i];
    memory_.push_back(TestMemory::In(arenas_[arena], offset, layout_->storages()[i].bytes));
  }
}

std::vector<std::string> TestShard::Arenas() const {
  std::vector<std::string> bytes;
  for (const TestMemory& arena : arenas_) bytes.push_back(arena.Read(0, arena.size()));
  return bytes;
}

std::vector<std::string> TestShard::Content() const {
  const std::vector<std::string> arenas = Arenas();
  std::vector<std::string> content;
  for (size_t i = 0; i < memory_.size(); ++i) {
    const size_t bytes = memory_[i].size();
    content.push_back(arenas.empty() ? memory_[i].Read(0, bytes)
                                     : arenas[places_[i].arena].substr(places_[i].offset, bytes));
  }
  return content;
}

bool TestShard::GapsAreZero() const {
  std::vector<std::string> arenas = Arenas();
  for (size_t i = 0; i < places_.size(); ++i) {
    arenas[places_[i].arena].replace(places_[i].offset, memory_[i].size(), memory_[i].size(), '\0');
  }
  return std::all_of(arenas.begin(), arenas.end(), [](const std::string& bytes) {
    return bytes.find_first_not_of('\0') == std::string::npos;
  });
}

void TestShard::FillWith(uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  std::vector<std::string> arenas = Arenas();
  for (size_t i = 0; i < memory_.size(); ++i) {
    std::string bytes(memory_[i].size(), 0);
    for (char& byte : bytes) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<char>(state >> 56);
    }
    if (arenas.empty()) {
      memory_[i].Write(0, bytes);
    } else {
      arenas[places_[i].arena].replace(places_[i].offset, bytes.size(), bytes);
    }
  }
  for (size_t i = 0; i < arenas.size(); ++i) arenas_[i].Write(0, arenas[i]);
}

std::string TestShard::BytesOf(SegmentIndex segment) const {
  std::string bytes;
  for (const SegmentPiece& piece : layout_->PiecesOf(segment)) {
    bytes += memory_[piece.storage].Read(piece.offset, piece.bytes);
  }
  return bytes;
}

void TestShard::Corrupt(SegmentIndex segment) {
  const SegmentPieces pieces = layout_->PiecesOf(segment);
  const TestMemory& memory = memory_[pieces[0].storage];
  std::string byte = memory.Read(pieces[0].offset, 1);
  byte[0] ^= 4;
  memory.Write(pieces[0].offset, byte);
}

SegmentChecksum TestShard::ChecksumOf(SegmentIndex segment) const {
  const std::string bytes = BytesOf(segment);
  return ChecksumBytes(bytes.data(), bytes.size());
}

Digest TestShard::Root() const {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < segment_count(); ++i) checksums.push_back(ChecksumOf(SegmentIndex(i)));
  return RootOfChecksums(checksums);
}

void TestShard::ChecksumAll() {
  const std::atomic<bool> never{false};
  const auto root = store_->Seal(never);
  EXPECT_TRUE(root.ok()) << root.status();
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
  bytes_reported_ = std::max(bytes_reported_, bytes_sent_so_far);
}

void TestHolder::OnReaderReleased(TransferId transfer, uint64_t, const std::string& why) {
  absl::MutexLock lock(&mu_);
  released_.push_back(transfer);
  if (!why.empty()) whys_.push_back(why);
}

std::vector<std::string> TestHolder::whys() const {
  absl::MutexLock lock(&mu_);
  return whys_;
}

void TestHolder::AwaitReleased(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto enough = [&]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return released_.size() >= count; };
  AwaitOrFail(mu_, absl::Condition(&enough), "a reader is released");
}

void TestHolder::AwaitBytesReported() {
  absl::MutexLock lock(&mu_);
  const auto reported = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return bytes_reported_ > 0; };
  AwaitOrFail(mu_, absl::Condition(&reported), "bytes that the source tells of");
}

std::vector<TransferId> TestHolder::admitted() const {
  absl::MutexLock lock(&mu_);
  return admitted_;
}

std::vector<TransferId> TestHolder::released() const {
  absl::MutexLock lock(&mu_);
  return released_;
}

uint64_t TestHolder::bytes_reported() const {
  absl::MutexLock lock(&mu_);
  return bytes_reported_;
}

// ---- TestSink

void TestSink::OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  EXPECT_EQ(first.value, checksums_.size());
  checksums_.insert(checksums_.end(), checksums.begin(), checksums.end());
}

void TestSink::OnAdmitted(BufferGeneration generation, bool lists_checksums) {
  absl::MutexLock lock(&mu_);
  lists_checksums_ = lists_checksums;
  calls_after_closed_ |= closed_.has_value();
  admitted_ = generation;
}

bool TestSink::OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) {
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  ++begun_;
  if (discard_.Contains(segment)) return false;
  SegmentStore& store = *into_->store();
  if (store.PlaceOf(segment) == SegmentStore::Place::kHost) {
    store.AppendPieces(segment, iov);
    return true;
  }
  absl::MutexLock landing_lock(&landing_mu_);
  std::string& landing = landing_[segment];
  landing.resize(store.layout().SegmentLength(segment));
  iov->push_back({landing.data(), landing.size()});
  return true;
}

bool TestSink::OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                                      std::vector<iovec>* iov) {
  std::vector<iovec> place;
  into_->store()->AppendPieces(segment, &place);
  const bool on_device = into_->store()->PlaceOf(segment) != SegmentStore::Place::kHost;
  if (on_device && !can_write(place)) return OnSegmentBegins(segment, iov);
  absl::MutexLock lock(&mu_);
  calls_after_closed_ |= closed_.has_value();
  ++begun_;
  if (discard_.Contains(segment)) return false;
  *iov = std::move(place);
  absl::MutexLock landing_lock(&landing_mu_);
  landing_.erase(segment);
  return true;
}

void TestSink::OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) {
  {
    absl::MutexLock landing_lock(&landing_mu_);
    if (const auto landed = landing_.find(segment); landed != landing_.end()) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(landed->second.data());
      const absl::Status copied =
          into_->store()->CopyIn(segment, absl::MakeConstSpan(bytes, landed->second.size()));
      EXPECT_TRUE(copied.ok()) << copied;
    }
  }
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

std::vector<SegmentChecksum> TestSink::AwaitChecksums(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return checksums_.size() >= count || closed_.has_value();
  };
  AwaitOrFail(mu_, absl::Condition(&done), "the sums arrive");
  EXPECT_GE(checksums_.size(), count) << (closed_ ? closed_->second : "not closed");
  return checksums_;
}

bool TestSink::lists_checksums() const {
  absl::MutexLock lock(&mu_);
  return lists_checksums_;
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

size_t TestSink::alive() const {
  absl::MutexLock lock(&mu_);
  return alive_;
}

bool TestSink::closed() const {
  absl::MutexLock lock(&mu_);
  return closed_.has_value();
}

}  // namespace th::testing
