// Question: how near does what transfers do with GPU memory where they cannot move it themselves, a
// segment at a time through pinned slots, come to one pinned copy by the driver? Each way is
// measured as transfers use it: out of a published store through DeviceStaging::CopyOut, and into a
// store through landing slots and SegmentStore::CopyIn.
//
//   device_staging_benchmark --bytes 1073741824 --json
//
// Segments of the default size show what each costs by itself; they have no goal. Large ones show
// the copies. Before each way is measured its bytes are compared once.
//
// Exit status 0 if every goal is reached; 1 if not, if a byte is wrong, or if there is no GPU.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/stream.h"
#include "th/status/status_macros.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/segment_store.h"

namespace th {
namespace {

constexpr uint64_t kDefaultSegmentBytes = uint64_t{256} << 10;
constexpr uint64_t kLargeSegmentBytes = uint64_t{16} << 20;
constexpr double kGoal = 0.9;  // of the pinned copy, with large segments

struct Options {
  std::string driver = std::string(kCudaLibrary);
  int device = 0;
  uint64_t bytes = uint64_t{1} << 30;
  int runs = 11;
  bool json = false;
};

struct Row {
  std::string what;
  double gbytes_per_s = 0;
  std::string baseline;  // empty: it is one
  double ratio = 0;
  double goal = 0;
};

// Bytes that differ from place to place.
std::vector<char> Pattern(uint64_t bytes, uint64_t seed) {
  std::vector<char> pattern(bytes);
  for (char& byte : pattern) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(seed >> 56);
  }
  return pattern;
}

absl::StatusOr<double> MedianSeconds(int runs, const std::function<absl::Status()>& measured) {
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    const absl::Time begin = MonotonicNow();
    TH_RETURN_IF_ERROR(measured());
    seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

// Counts what is done and keeps the first error. Thread-safe.
class Tally {
 public:
  Tally() = default;
  // Whoever has said Done last has left it.
  ~Tally() { absl::MutexLock lock(&mu_); }
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  void Done(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    ++done_;
    error_.Update(status);
  }
  absl::Status Await(uint64_t count) {
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_ >= count; };
    absl::MutexLock lock(&mu_, absl::Condition(&reached));
    return error_;
  }

 private:
  absl::Mutex mu_;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

// One tensor in GPU memory, published, and its segments.
class Shard {
 public:
  Shard(std::shared_ptr<CudaMemoryDevices> devices, CudaDevice* device, const DeviceBuffer& buffer)
      : devices_(std::move(devices)), device_(device), buffer_(buffer) {}

  absl::Status Publish(uint64_t segment_bytes) {
    ShardLayout::Spec spec{.segment_bytes = segment_bytes,
                           .checksum = ChecksumAlgorithm::kXxh3Leaves};
    TensorSpec tensor;
    tensor.name = "weights";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(buffer_.bytes())};
    spec.tensors.push_back(std::move(tensor));
    TH_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Build(std::move(spec)));
    StorageMemory memory;
    memory.regions = {
        {buffer_.pointer(), buffer_.bytes(), MemoryKind::kDevice, device_->pci_address()}};
    TH_ASSIGN_OR_RETURN(memory.device, devices_->Register(memory.regions));
    store_ = std::make_shared<SegmentStore>(std::make_shared<const ShardLayout>(std::move(layout)),
                                            std::move(memory));
    store_->Publish(BufferGeneration(1));
    // As what is served has: the sums are known, so copies out take none.
    const std::atomic<bool> never{false};
    return store_->Seal(never).status();
  }

  using Take = std::function<absl::Status(SegmentIndex, absl::Span<const std::byte>)>;
  // Has every segment copied out and taken, on th-stage-gpu.
  absl::Status CopyOut(const Take& take) {
    const auto wanted = std::make_shared<int>(0);
    Tally tally;
    for (SegmentIndex i(0); i.value < store_->layout().segment_count(); i = i.Next()) {
      staging_->CopyOut({.store = store_,
                         .device = store_->device(),
                         .segment = i,
                         .wanted = wanted,
                         .done = [&tally, &take, i](absl::StatusOr<StagedSegment> staged) {
                           absl::Status status = staged.status();
                           if (staged.ok()) status = take(i, staged->bytes);
                           staged = absl::CancelledError("taken");  // gives the slot back
                           tally.Done(status);
                         }});
    }
    return tally.Await(store_->layout().segment_count());
  }

  using Land = std::function<void(SegmentIndex, absl::Span<std::byte>)>;
  // Has every segment landed in a slot and copied in.
  absl::Status CopyIn(const Land& land) {
    Tally tally;
    TH_RETURN_IF_ERROR(staging_->PrepareLanding(*store_));
    for (SegmentIndex i(0); i.value < store_->layout().segment_count(); i = i.Next()) {
      std::shared_ptr<StagingSlot> slot = FreeSlot(tally, i.value);
      const uint64_t bytes = store_->layout().SegmentLength(i);
      land(i, slot->bytes(bytes));
      {
        absl::MutexLock lock(&mu_);
        landed_.push_back({i, std::move(slot), &tally});
      }
      staging_->Post(store_->device_names(), [this] { PutNextInPlace(); });
    }
    return tally.Await(store_->layout().segment_count());
  }

  const ShardLayout& layout() const { return store_->layout(); }

 private:
  struct Landed {
    SegmentIndex segment;
    std::shared_ptr<StagingSlot> slot;
    Tally* tally;
  };

  // In one go what a fill would copy so.
  void PutNextInPlace() {
    std::vector<Landed> taken;
    std::vector<SegmentStore::Incoming> segments;
    uint64_t bytes = 0;
    {
      absl::MutexLock lock(&mu_);
      while (!landed_.empty()) {
        const uint64_t length = store_->layout().SegmentLength(landed_.front().segment);
        bytes += length;
        if (!taken.empty() && bytes > kDeviceBytesCopiedAtOnce) break;
        taken.push_back(std::move(landed_.front()));
        landed_.pop_front();
        segments.push_back({taken.back().segment, taken.back().slot->bytes(length)});
      }
    }
    if (taken.empty()) return;
    const absl::Status copied = store_->CopyIn(segments);
    for (Landed& each : taken) {
      each.slot = nullptr;
      each.tally->Done(copied);
    }
  }

  // `posted` segments are on their way: one of them has a slot that comes back.
  std::shared_ptr<StagingSlot> FreeSlot(Tally& tally, uint64_t posted) {
    for (uint64_t done = 1;; ++done) {
      if (auto slot = staging_->TryTakeLandingSlot(store_->layout())) return slot;
      static_cast<void>(tally.Await(std::min(done, posted)).ok());
    }
  }

  const std::shared_ptr<CudaMemoryDevices> devices_;
  CudaDevice* const device_;
  const DeviceBuffer& buffer_;
  absl::Mutex mu_;
  std::deque<Landed> landed_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SegmentStore> store_;
  // Ends first: its threads use what stands above.
  const std::shared_ptr<DeviceStaging> staging_ = DeviceStaging::Create({});
};

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) {}

  absl::StatusOr<std::vector<Row>> Run() {
    TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load(options_.driver));
    TH_ASSIGN_OR_RETURN(devices_, CudaMemoryDevices::Open(driver));
    TH_ASSIGN_OR_RETURN(device_, devices_->devices().ByIndex(options_.device));
    TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device_));
    TH_ASSIGN_OR_RETURN(const DeviceBuffer buffer, DeviceBuffer::Allocate(device_, options_.bytes));
    TH_ASSIGN_OR_RETURN(const PinnedBuffer pinned, PinnedBuffer::Allocate(device_, options_.bytes));
    TH_RETURN_IF_ERROR(MeasureCopies(stream, buffer, pinned));
    for (const uint64_t segment_bytes : {kLargeSegmentBytes, kDefaultSegmentBytes}) {
      Shard shard(devices_, device_, buffer);
      std::memcpy(pinned.data(), pattern_.data(), pattern_.size());
      TH_RETURN_IF_ERROR(stream.CopyToDevice(buffer.address(), pinned.data(), options_.bytes));
      TH_RETURN_IF_ERROR(stream.Synchronize());
      TH_RETURN_IF_ERROR(shard.Publish(segment_bytes));
      TH_RETURN_IF_ERROR(MeasureOut(shard));
      TH_RETURN_IF_ERROR(MeasureIn(shard, stream, buffer, pinned));
    }
    return rows_;
  }
  const CudaDevice& device() const { return *device_; }

 private:
  absl::Status MeasureCopies(const CudaStream& stream, const DeviceBuffer& buffer,
                             const PinnedBuffer& pinned) {
    const auto to_host = [&]() -> absl::Status {
      TH_RETURN_IF_ERROR(stream.CopyToHost(pinned.data(), buffer.address(), options_.bytes));
      return stream.Synchronize();
    };
    const auto to_device = [&]() -> absl::Status {
      TH_RETURN_IF_ERROR(stream.CopyToDevice(buffer.address(), pinned.data(), options_.bytes));
      return stream.Synchronize();
    };
    TH_RETURN_IF_ERROR(to_host());  // what is made at a first use is not counted
    TH_ASSIGN_OR_RETURN(to_host_, Rate(to_host));
    rows_.push_back({"pinned copy to the host", to_host_, "", 0, 0});
    TH_ASSIGN_OR_RETURN(to_device_, Rate(to_device));
    rows_.push_back({"pinned copy to the device", to_device_, "", 0, 0});
    return absl::OkStatus();
  }

  absl::Status MeasureOut(Shard& shard) {
    TH_RETURN_IF_ERROR(shard.CopyOut([&](SegmentIndex segment, absl::Span<const std::byte> bytes) {
      return Compare(shard, segment, reinterpret_cast<const char*>(bytes.data()));
    }));
    TH_ASSIGN_OR_RETURN(const double rate, Rate([&] {
                          return shard.CopyOut([](SegmentIndex, absl::Span<const std::byte>) {
                            return absl::OkStatus();
                          });
                        }));
    Add(shard, "staged to the host", rate, "pinned copy to the host", to_host_);
    return absl::OkStatus();
  }

  absl::Status MeasureIn(Shard& shard, const CudaStream& stream, const DeviceBuffer& buffer,
                         const PinnedBuffer& pinned) {
    // Other bytes first, or a copy that does nothing would look right.
    std::memset(pinned.data(), 0, options_.bytes);
    TH_RETURN_IF_ERROR(stream.CopyToDevice(buffer.address(), pinned.data(), options_.bytes));
    TH_RETURN_IF_ERROR(stream.Synchronize());
    TH_RETURN_IF_ERROR(shard.CopyIn([&](SegmentIndex segment, absl::Span<std::byte> slot) {
      std::memcpy(slot.data(), pattern_.data() + shard.layout().segment_bytes() * segment.value,
                  slot.size());
    }));
    TH_RETURN_IF_ERROR(stream.CopyToHost(pinned.data(), buffer.address(), options_.bytes));
    TH_RETURN_IF_ERROR(stream.Synchronize());
    if (std::memcmp(pinned.data(), pattern_.data(), options_.bytes) != 0) {
      return absl::DataLossError("bytes that were staged to the device are wrong");
    }
    // A transport's write into a slot takes its own time, so here nothing is written.
    TH_ASSIGN_OR_RETURN(const double rate, Rate([&] {
                          return shard.CopyIn([](SegmentIndex, absl::Span<std::byte>) {});
                        }));
    Add(shard, "staged to the device", rate, "pinned copy to the device", to_device_);
    return absl::OkStatus();
  }

  absl::Status Compare(const Shard& shard, SegmentIndex segment, const char* bytes) const {
    const uint64_t at = shard.layout().segment_bytes() * segment.value;
    if (std::memcmp(bytes, pattern_.data() + at, shard.layout().SegmentLength(segment)) == 0) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("bytes of segment ", segment.value,
                                            " that were staged to the host are wrong"));
  }

  absl::StatusOr<double> Rate(const std::function<absl::Status()>& measured) const {
    TH_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(options_.runs, measured));
    return static_cast<double>(options_.bytes) / seconds / 1e9;
  }
  void Add(const Shard& shard, const std::string& what, double rate, const std::string& baseline,
           double baseline_rate) {
    const uint64_t segment_kib = shard.layout().segment_bytes() >> 10;
    const bool large = shard.layout().segment_bytes() == kLargeSegmentBytes;
    rows_.push_back({absl::StrCat(what, ", segments of ", segment_kib, " KiB"), rate, baseline,
                     rate / baseline_rate, large ? kGoal : 0});
  }

  const Options options_;
  const std::vector<char> pattern_ = Pattern(options_.bytes, 1);
  std::shared_ptr<CudaMemoryDevices> devices_;
  CudaDevice* device_ = nullptr;
  double to_host_ = 0, to_device_ = 0;  // GB/s of the driver's copies
  std::vector<Row> rows_;
};

void Print(const CudaDevice& device, const std::vector<Row>& rows, bool json) {
  for (const Row& row : rows) {
    if (json) {
      std::printf(
          "{\"device\":\"%s\",\"what\":\"%s\",\"gbytes_per_s\":%.3f,\"baseline\":\"%s\",\"ratio\":%"
          ".3f,\"goal\":%.2f}\n",
          device.name().c_str(), row.what.c_str(), row.gbytes_per_s, row.baseline.c_str(),
          row.ratio, row.goal);
    } else if (row.baseline.empty()) {
      std::printf("%-44s %9.2f GB/s\n", row.what.c_str(), row.gbytes_per_s);
    } else {
      std::printf("%-44s %9.2f GB/s  %.2f of %s, goal %.2f%s\n", row.what.c_str(), row.gbytes_per_s,
                  row.ratio, row.baseline.c_str(), row.goal,
                  row.ratio < row.goal ? ": NOT REACHED" : "");
    }
  }
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  th::Options options;
  bool judge = true;
  CLI::App app("Staging of GPU memory as transfers do it, beside one pinned copy by the driver.");
  app.add_option("--driver", options.driver, "the CUDA driver's library")->capture_default_str();
  app.add_option("--device", options.device, "its index in this process")->capture_default_str();
  app.add_option("--bytes", options.bytes, "weights; the same is pinned, and taken once more")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 36));
  app.add_option("--runs", options.runs, "of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", options.json, "a JSON object a line");
  app.add_flag("--judge,!--no-judge", judge, "fail if a goal is not reached");
  CLI11_PARSE(app, argc, argv);
  th::Benchmark benchmark(options);
  const absl::StatusOr<std::vector<th::Row>> rows = benchmark.Run();
  if (!rows.ok()) {
    std::fprintf(stderr, "device_staging_benchmark: %s\n", rows.status().ToString().c_str());
    return 1;
  }
  th::Print(benchmark.device(), *rows, options.json);
  const bool reached = std::all_of(rows->begin(), rows->end(),
                                   [](const th::Row& row) { return row.ratio >= row.goal; });
  return reached || !judge ? 0 : 1;
}
