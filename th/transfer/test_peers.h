// The peers in tests of transports and fills: shards with known bytes, a holder that serves one,
// and a sink that receives one.
#ifndef TH_TRANSFER_TEST_PEERS_H_
#define TH_TRANSFER_TEST_PEERS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/device_side.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/test_device.h"
#include "th/transfer/transport.h"

namespace th::testing {

// Long enough for a loaded machine; only failing tests wait for it.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

inline constexpr WorkerId kHolderWorker(41);
inline constexpr WorkerId kReaderWorker(42);
inline constexpr BufferId kBuffer(7);

// The bytes of one storage, zeroed. A value that can be moved.
class TestMemory {
 public:
  // On the device, if there is one: then only device(), Read and Write may be used.
  explicit TestMemory(size_t bytes, TestDevice* device = nullptr);
  // Bytes [offset, offset + bytes) of `arena`, which outlives it.
  static TestMemory In(const TestMemory& arena, size_t offset, size_t bytes);
  ~TestMemory();
  TestMemory(TestMemory&& other) noexcept { *this = std::move(other); }
  TestMemory& operator=(TestMemory&& other) noexcept;
  // Storages of kMinSharedBytes and more are in memory that other processes can map, from now on.
  static void Share(bool shared) { shared_ = shared; }
  static constexpr size_t kMinSharedBytes = 64 << 10;

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  TestDevice* device() const { return device_; }
  std::string Read(size_t offset, size_t bytes) const;
  void Write(size_t offset, absl::Span<const char> bytes) const;

 private:
  TestMemory() = default;

  inline static bool shared_ = false;
  bool owned_ = false;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  TestDevice* device_ = nullptr;
};

// A shard in memory of its own. Bytes are a function of `seed` and their place.
class TestShard {
 public:
  struct Spec {
    std::vector<uint64_t> tensor_bytes = {700'000, 3, 0, 5'000, 262'144};
    uint64_t segment_bytes = 65'536;
    ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves;
    // The storages lie on this device; null: in host memory. It outlives the shard.
    TestDevice* device = default_device;
    bool every_other_on_host = default_every_other_on_host;  // the first, the third and so on
    // All storages of a kind of memory lie in one arena, with 1 to 11 bytes between them.
    bool odd_gaps = false;
  };
  // The place of shards whose spec does not say.
  inline static TestDevice* default_device = nullptr;
  inline static bool default_every_other_on_host = false;

  explicit TestShard(const Spec& spec);

  void FillWith(uint64_t seed);
  bool Equals(const TestShard& other) const { return Content() == other.Content(); }
  // True unless bytes between storages have been written.
  bool GapsAreZero() const;
  // The bytes of one segment, in order.
  std::string BytesOf(SegmentIndex segment) const;
  // Flips a bit of a segment in memory.
  void Corrupt(SegmentIndex segment);
  SegmentChecksum ChecksumOf(SegmentIndex segment) const;
  Digest Root() const;
  // Sums as sealing does, of a store that is published.
  void ChecksumAll();

  const ShardLayout& layout() const { return *layout_; }
  uint64_t segment_count() const { return layout_->segment_count(); }
  const std::shared_ptr<SegmentStore>& store() const { return store_; }
  // The device's side of the store; null where all is in host memory.
  const std::shared_ptr<DeviceSide>& device_side() const { return device_side_; }
  // Gives the memory back under the store's feet.
  void FreeMemory() {
    memory_.clear();
    arenas_.clear();
  }
  SegmentRange all() const { return {SegmentIndex(0), SegmentIndex(segment_count())}; }

 private:
  struct Place {
    size_t arena = 0;
    size_t offset = 0;
  };

  void Allocate(const Spec& spec);
  void AllocateWithGaps(const Spec& spec);
  // The bytes of each arena, gaps included.
  std::vector<std::string> Arenas() const;
  // The bytes of each storage.
  std::vector<std::string> Content() const;

  std::shared_ptr<const ShardLayout> layout_;
  std::vector<TestMemory> arenas_;  // of the host and of the device, or none
  std::vector<TestMemory> memory_;  // of each storage
  std::vector<Place> places_;       // of each storage, where there are arenas
  std::shared_ptr<DeviceSide> device_side_;
  std::shared_ptr<SegmentStore> store_;
};

// Admits who has a capability under its key, for one store.
class TestHolder : public HolderDelegate {
 public:
  explicit TestHolder(std::shared_ptr<SegmentStore> store,
                      BufferGeneration generation = BufferGeneration(1));

  // The target with which a reader pulls from this holder at `endpoint`.
  PullTarget Target(const Endpoint& endpoint, std::shared_ptr<const ShardLayout> layout) const;
  Capability Mint() const;

  void set_worker(WorkerId worker) { worker_ = worker; }
  // Decisions are kept until DecideAll. Set before readers come.
  void HoldDecisions() { hold_ = true; }
  void DecideAll();
  void AwaitUndecided(size_t count);

  void AwaitReleased(size_t count);
  void AwaitBytesReported();  // of any transfer
  std::vector<TransferId> admitted() const;
  std::vector<TransferId> released() const;
  // The reasons why the source ended transfers at once, one for each.
  std::vector<std::string> whys() const;
  uint64_t bytes_reported() const;

  void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) override;
  void OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) override;
  void OnReaderReleased(TransferId transfer, uint64_t bytes_sent, const std::string& why) override;

 private:
  Admission Decide(const AdmissionRequest& request);

  const std::shared_ptr<SegmentStore> store_;
  const BufferGeneration generation_;
  const CapabilityKey key_;
  WorkerId worker_ = kHolderWorker;
  bool hold_ = false;

  mutable absl::Mutex mu_;
  std::vector<std::pair<AdmissionRequest, std::function<void(Admission)>>> undecided_
      ABSL_GUARDED_BY(mu_);
  std::vector<TransferId> admitted_ ABSL_GUARDED_BY(mu_);
  std::vector<TransferId> released_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> whys_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_reported_ ABSL_GUARDED_BY(mu_) = 0;
};

// Receives into a shard and remembers what happened.
class TestSink : public PullSink {
 public:
  explicit TestSink(const TestShard* into) : into_(into) {}

  // Segments for which OnSegmentBegins says no. Set before asking.
  void Discard(SegmentIndex segment) { discard_.Add(segment); }

  BufferGeneration AwaitAdmitted();
  void AwaitBegun(size_t count);  // OnSegmentBegins
  void AwaitSegments(size_t count);
  void AwaitAlive(size_t count);
  size_t alive() const;
  // The first sums of the list, at least so many.
  std::vector<SegmentChecksum> AwaitChecksums(size_t count);
  bool lists_checksums() const;
  std::pair<SourceFailure, std::string> AwaitClosed();
  // Each as it landed: whether sent and computed sum agree.
  std::vector<std::pair<SegmentIndex, bool>> segments() const;
  bool calls_after_closed() const;
  bool closed() const;

  void OnAdmitted(BufferGeneration generation, bool lists_checksums) override;
  void OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) override;
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override;
  bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                              std::vector<iovec>* iov) override;
  void OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) override;
  void OnAlive() override;
  void OnClosed(SourceFailure failure, std::string detail) override;

 private:
  const TestShard* const into_;
  SegmentSet discard_;
  // Segments that are not all in host memory land here first. By data threads, each its own
  // segment.
  absl::Mutex landing_mu_;
  std::map<SegmentIndex, std::string> landing_ ABSL_GUARDED_BY(landing_mu_);

  mutable absl::Mutex mu_;
  std::optional<BufferGeneration> admitted_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<SegmentIndex, bool>> segments_ ABSL_GUARDED_BY(mu_);
  std::vector<SegmentChecksum> checksums_ ABSL_GUARDED_BY(mu_);
  bool lists_checksums_ ABSL_GUARDED_BY(mu_) = false;
  size_t begun_ ABSL_GUARDED_BY(mu_) = 0;
  size_t alive_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<std::pair<SourceFailure, std::string>> closed_ ABSL_GUARDED_BY(mu_);
  bool calls_after_closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Holds the data thread that is about to take the first segment until it is let go on.
class GatedSink : public TestSink {
 public:
  using TestSink::TestSink;
  void AwaitEntered() { entered_.WaitForNotification(); }
  void GoOn() { go_on_.Notify(); }
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override {
    if (!entered_.HasBeenNotified()) entered_.Notify();
    go_on_.WaitForNotification();
    return TestSink::OnSegmentBegins(segment, iov);
  }
  bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                              std::vector<iovec>* iov) override {
    if (!entered_.HasBeenNotified()) entered_.Notify();
    go_on_.WaitForNotification();
    return TestSink::OnSegmentBeginsInPlace(segment, can_write, iov);
  }

 private:
  absl::Notification entered_, go_on_;
};

// A machine that is busy, or emulated, may stand still for longer than a reader waits by default to
// be connected and admitted.
TransportLimits PatientLimits();

// Fails the test and goes on when `condition` does not come true in time. Called with `mu` held.
void AwaitOrFail(absl::Mutex& mu, const absl::Condition& condition, const char* what)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

}  // namespace th::testing

#endif  // TH_TRANSFER_TEST_PEERS_H_
