// Questions: how fast does a shard move from one process's GPU memory into another's, beside the
// driver's own copy of as many bytes through the same link? And one of many tensors, beside one
// tensor of as many bytes?
//
//   bazel build //th/transfer/cuda_ipc:cuda_ipc_benchmark
//   cuda_ipc_benchmark --source-device 0 --reader-device 1 --bytes 1073741824 --json
//   cuda_ipc_benchmark --tensors 61000 --beside-one-tensor
//
// The reader's memory is overwritten before each run. After it every byte is compared with what the
// source has, and the bytes between tensors with what they were before.
//
// Without a GPU the benchmark shows the processors' part: with //testing/fake_cuda, whose copies
// cost nothing then, and a wait for the device that lasts as long as on a GPU.
//
//   TH_FAKE_CUDA_LOSE_DEVICE_COPIES=1 TH_FAKE_CUDA_SYNCHRONIZE_MICROSECONDS=60
//       cuda_ipc_benchmark --driver libcuda_fake.so --no-verify --no-judge
//
// Exit status 0 if the goal is reached (--goal, 0.9 of the copy with checksums off, 1 / 1.1 of the
// one tensor); 1 if not, if a byte is wrong, or if there is no such GPU.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/stream.h"
#include "th/status/status_macros.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/two_process_benchmark.h"

namespace th {
namespace {

struct Options {
  std::string driver = std::string(kCudaLibrary);
  int source_device = 0;
  int reader_device = 0;
  uint64_t bytes = uint64_t{1} << 30;
  uint64_t tensors = 1;
  uint64_t tensor_bytes = 0;   // of each tensor, in place of `bytes`; 0: not given
  uint64_t segment_bytes = 0;  // 0: what the layout has for so many bytes
  uint32_t requests = ReplicatorLimits().device_requests_in_flight;
  bool beside_one_tensor = false;
  int runs = 11;
  bool checksum = false;
  bool verify = true;
  bool json = false;
  bool judge = true;
  std::optional<double> goal;
};

// Many tensors may take a tenth longer than one.
constexpr double kGoalBesideOneTensor = 1 / 1.1;
constexpr double kGoalBesideCopy = 0.9;
constexpr WorkerId kOneTensorWorker(2);

// Bytes that differ from place to place, and from one `salt` to another. They repeat after a prime
// number of bytes, so that no two segments are alike.
class Pattern {
 public:
  static constexpr uint64_t kPeriod = 16'777'259;

  explicit Pattern(uint64_t salt) : bytes_(kPeriod + kLongest) {
    uint64_t state = salt;
    for (uint64_t i = 0; i < kPeriod; ++i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      bytes_[i] = static_cast<char>(state >> 56);
    }
    std::memcpy(bytes_.data() + kPeriod, bytes_.data(), kLongest);
  }
  // `count` bytes, at most kLongest, as from place `at` on.
  static constexpr uint64_t kLongest = uint64_t{4} << 20;
  const char* At(uint64_t at) const { return bytes_.data() + at % kPeriod; }

 private:
  std::vector<char> bytes_;
};

template <typename Value>
Value Must(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "cuda_ipc_benchmark: %s\n", value.status().ToString().c_str());
  std::exit(1);
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cuda_ipc_benchmark: %s\n", status.ToString().c_str());
  std::exit(1);
}

// Tensors beside each other in one allocation, with odd gaps where there are several.
class DeviceShard {
 public:
  DeviceShard(const Options& options, int device, uint64_t tensors)
      : devices_(Must(CudaMemoryDevices::Open(Must(CudaDriver::Load(options.driver))))),
        device_(Must(devices_->devices().ByIndex(device))),
        tensors_(tensors),
        tensor_bytes_(options.bytes / tensors),
        stride_(tensors == 1 ? tensor_bytes_ : tensor_bytes_ + 16 + tensor_bytes_ % 2) {
    buffer_ =
        std::make_unique<DeviceBuffer>(Must(DeviceBuffer::Allocate(device_, tensors * stride_)));
    ShardLayout::Spec spec{
        .segment_bytes = options.segment_bytes,
        .checksum = options.checksum ? ChecksumAlgorithm::kXxh3Leaves : ChecksumAlgorithm::kNone};
    StorageMemory memory;
    // The layout goes by names, so those are of one width: places follow each other.
    constexpr uint64_t kFirstName = 100'000'000;
    for (uint64_t i = 0; i < tensors; ++i) {
      TensorSpec tensor;
      tensor.name = absl::StrCat("tensor.", kFirstName + i);
      tensor.dtype = DType::kU8;
      tensor.shape = {static_cast<int64_t>(tensor_bytes_)};
      spec.tensors.push_back(std::move(tensor));
      memory.regions.push_back({reinterpret_cast<void*>(buffer_->address() + i * stride_),
                                tensor_bytes_, MemoryKind::kDevice, device_->pci_address()});
    }
    memory.device = Must(devices_->Register(memory.regions));
    store_ = std::make_shared<SegmentStore>(
        std::make_shared<const ShardLayout>(Must(ShardLayout::Build(std::move(spec)))),
        std::move(memory));
  }

  // Overwrites the whole allocation.
  absl::Status Write(const Pattern& pattern) const {
    TH_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(device_));
    for (uint64_t at = 0; at < buffer_->bytes(); at += Pattern::kLongest) {
      TH_RETURN_IF_ERROR(stream.CopyToDevice(buffer_->address() + at, pattern.At(at), ChunkAt(at)));
    }
    return stream.Synchronize();
  }
  // DATA_LOSS unless the tensors have the bytes of `weights` and all else has those of `before`.
  absl::Status Verify(const Pattern& weights, const Pattern& before) const {
    TH_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(device_));
    std::vector<char> got(Pattern::kLongest), wanted(Pattern::kLongest);
    for (uint64_t at = 0; at < buffer_->bytes(); at += Pattern::kLongest) {
      const uint64_t bytes = ChunkAt(at);
      TH_RETURN_IF_ERROR(stream.CopyToHost(got.data(), buffer_->address() + at, bytes));
      TH_RETURN_IF_ERROR(stream.Synchronize());
      std::memcpy(wanted.data(), before.At(at), bytes);
      for (uint64_t tensor = at / stride_; tensor * stride_ < at + bytes; ++tensor) {
        const uint64_t begin = std::max(at, tensor * stride_);
        const uint64_t end = std::min(at + bytes, tensor * stride_ + tensor_bytes_);
        if (begin < end) std::memcpy(&wanted[begin - at], weights.At(begin), end - begin);
      }
      if (std::memcmp(got.data(), wanted.data(), bytes) == 0) continue;
      uint64_t first = 0;
      while (got[first] == wanted[first]) ++first;
      return absl::DataLossError(absl::StrCat("byte ", at + first, " of ", buffer_->bytes(),
                                              " is wrong after a transfer of ", tensors_,
                                              " tensors"));
    }
    return absl::OkStatus();
  }

  CudaDevice& device() const { return *device_; }
  const CudaDevices& devices() const { return devices_->devices(); }
  const DeviceBuffer& buffer() const { return *buffer_; }
  const std::shared_ptr<SegmentStore>& store() const { return store_; }

 private:
  uint64_t ChunkAt(uint64_t at) const { return std::min(Pattern::kLongest, buffer_->bytes() - at); }

  const std::shared_ptr<CudaMemoryDevices> devices_;
  CudaDevice* const device_;
  const uint64_t tensors_;
  const uint64_t tensor_bytes_;
  const uint64_t stride_;  // from the beginning of one tensor to that of the next
  std::unique_ptr<DeviceBuffer> buffer_;
  std::shared_ptr<SegmentStore> store_;
};

std::unique_ptr<Transport> Begin(const Options& options,
                                 std::shared_ptr<cuda_ipc::CopyCounters> counters) {
  return Must(NewCudaIpcTransport({.driver = options.driver,
                                   .limits = {},
                                   .exports = {},
                                   .imports = {},
                                   .counters = std::move(counters)}));
}

// The source's bytes; below, what the reader's memory holds before each run.
const Pattern& Weights() {
  static const auto* const weights = new Pattern(1);
  return *weights;
}
const Pattern& Before() {
  static const auto* const before = new Pattern(2);
  return *before;
}

// A shard that is served under the name of `worker`.
class ServedShard {
 public:
  ServedShard(const Options& options, uint64_t tensors, Transport* transport, WorkerId worker)
      : shard_(options, options.source_device, tensors),
        holder_(shard_.store()),
        transport_(transport),
        worker_(worker) {
    Must(shard_.Write(Weights()));
    shard_.store()->Publish(BufferGeneration(1));
    const std::atomic<bool> never{false};
    Must(shard_.store()->Seal(never));
    memory_ = Must(transport->Attach(shard_.store()->regions()));
    transport->AddHolder(worker, &holder_);
  }
  ~ServedShard() { transport_->RemoveHolder(worker_); }
  ServedShard(const ServedShard&) = delete;
  ServedShard& operator=(const ServedShard&) = delete;

 private:
  const DeviceShard shard_;
  AdmitsAll holder_;
  Transport* const transport_;  // outlives it
  const WorkerId worker_;
  std::unique_ptr<AttachedMemory> memory_;
};

// Serves until the reader closes its end of `control`.
void RunSource(int control, const Options& options) {
  auto transport = Begin(options, nullptr);
  const ServedShard shard(options, options.tensors, transport.get(), kBenchmarkWorker);
  std::optional<ServedShard> one_tensor;
  if (options.beside_one_tensor) {
    one_tensor.emplace(options, /*tensors=*/1, transport.get(), kOneTensorWorker);
  }
  const std::string address = transport->endpoints()[0].address;
  if (write(control, address.data(), address.size()) < 0) std::exit(1);
  char end = 0;
  while (read(control, &end, 1) == 1) continue;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The driver's copy from another allocation of the source's device.
absl::StatusOr<double> CopySeconds(const DeviceShard& shard, const Options& options) {
  TH_ASSIGN_OR_RETURN(CudaDevice* const from, shard.devices().ByIndex(options.source_device));
  TH_ASSIGN_OR_RETURN(const DeviceBuffer buffer, DeviceBuffer::Allocate(from, options.bytes));
  TH_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(&shard.device()));
  std::vector<double> seconds;
  for (int run = 0; run <= options.runs; ++run) {
    const absl::Time begin = MonotonicNow();
    TH_RETURN_IF_ERROR(
        from == &shard.device()
            ? stream.CopyOnDevice(shard.buffer().address(), buffer.address(), options.bytes)
            : stream.CopyFromPeer(shard.buffer().address(), *from, buffer.address(),
                                  options.bytes));
    TH_RETURN_IF_ERROR(stream.Synchronize());
    if (run > 0) seconds.push_back(absl::ToDoubleSeconds(MonotonicNow() - begin));
  }
  return Median(seconds);
}

// The seconds of one run, whose bytes have all been compared.
double SecondsOfRun(const DeviceShard& shard, Transport* transport, const Endpoint& source,
                    const Options& options, WorkerId worker) {
  Must(shard.Write(Before()));
  ReplicatorLimits limits;
  limits.device_requests_in_flight = options.requests;
  const double seconds = SecondsToReceive(shard.store(), transport, source, limits, worker);
  if (options.verify) Must(shard.Verify(Weights(), Before()));
  return seconds;
}

struct Row {
  std::string device;
  std::string what;
  double seconds = 0;
  std::string baseline;
  double baseline_seconds = 0;
  double goal = 0;
  double ratio() const { return baseline_seconds / seconds; }
};

void Print(const Row& row, uint64_t bytes, bool json) {
  const double rate = static_cast<double>(bytes) / row.seconds / 1e9;
  if (json) {
    std::printf(
        "{\"device\":\"%s\",\"what\":\"cuda_ipc: %s\",\"gbytes_per_s\":%.3f,\"baseline\":\"%s\","
        "\"ratio\":%.3f,\"goal\":%.2f}\n",
        row.device.c_str(), row.what.c_str(), rate, row.baseline.c_str(), row.ratio(), row.goal);
    return;
  }
  std::printf("cuda_ipc, %s: %.2f GB/s  %.2f of %s (%.2f GB/s), goal %.2f%s\n", row.what.c_str(),
              rate, row.ratio(), row.baseline.c_str(),
              static_cast<double>(bytes) / row.baseline_seconds / 1e9, row.goal,
              row.ratio() < row.goal ? ": NOT REACHED" : "");
}

// Returns whether the goal is reached.
bool RunReader(int control, const Options& options) {
  const DeviceShard shard(options, options.reader_device, options.tensors);
  std::optional<DeviceShard> one_tensor;
  if (options.beside_one_tensor) one_tensor.emplace(options, options.reader_device, /*tensors=*/1);
  const auto counters = std::make_shared<cuda_ipc::CopyCounters>();
  auto transport = Begin(options, counters);
  std::vector<std::unique_ptr<AttachedMemory>> memory;
  memory.push_back(Must(transport->Attach(shard.store()->regions())));
  if (one_tensor) memory.push_back(Must(transport->Attach(one_tensor->store()->regions())));
  char address[512] = {};
  if (read(control, address, sizeof(address) - 1) <= 0) std::exit(1);
  const Endpoint source{.address = address, .transport = kCudaIpcTransport, .site = ""};
  std::vector<double> seconds, one_tensor_seconds;  // in turn, so that both have the same GPU
  for (int run = 0; run <= options.runs; ++run) {
    const double took = SecondsOfRun(shard, transport.get(), source, options, kBenchmarkWorker);
    if (run > 0) seconds.push_back(took);  // the first one imports
    if (!one_tensor) continue;
    const double one_took =
        SecondsOfRun(*one_tensor, transport.get(), source, options, kOneTensorWorker);
    if (run > 0) one_tensor_seconds.push_back(one_took);
  }
  const char* const way = counters->staged_bytes > 0        ? "staged"
                          : counters->peer_access_bytes > 0 ? "peer access"
                                                            : "same device";
  const Row row{.device = shard.device().name(),
                .what = absl::StrCat(way, ", ", options.tensors, " tensors of ",
                                     options.bytes / options.tensors, " bytes, checksums ",
                                     options.checksum ? "on" : "off"),
                .seconds = Median(seconds),
                .baseline = one_tensor ? "one tensor" : "the driver's copy",
                .baseline_seconds =
                    one_tensor ? Median(one_tensor_seconds) : Must(CopySeconds(shard, options)),
                .goal = options.goal.value_or(one_tensor ? kGoalBesideOneTensor : kGoalBesideCopy)};
  Print(row, options.bytes, options.json);
  return row.ratio() >= row.goal;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("A shard from one process's GPU memory into another's, beside the driver's copy.");
  app.add_option("--driver", options.driver, "the CUDA driver's library")->capture_default_str();
  app.add_option("--source-device", options.source_device)->capture_default_str();
  app.add_option("--reader-device", options.reader_device)->capture_default_str();
  app.add_option("--bytes", options.bytes, "weights; twice as much device memory is taken")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 36));
  app.add_option("--tensors", options.tensors, "that the weights are cut into")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20));
  app.add_option("--tensor-bytes", options.tensor_bytes, "of each tensor, in place of --bytes")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30));
  app.add_option("--segment-bytes", options.segment_bytes,
                 "of the shard's segments (what a shard of the size has by itself)")
      ->check(CLI::Range(kMinSegmentBytes, kMaxSegmentBytes));
  app.add_option("--requests", options.requests, "of 4 MiB in flight at the source")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  app.add_flag("--beside-one-tensor", options.beside_one_tensor,
               "the baseline is one tensor of as many bytes; takes twice as much device memory");
  app.add_option("--runs", options.runs, "of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--goal", options.goal,
                 "of the baseline's speed (0.9 of the driver's copy, 0.91 of one tensor)");
  app.add_flag("--checksum", options.checksum, "sums are taken and compared");
  app.add_flag("--verify,!--no-verify", options.verify,
               "compare every byte; without it for a fake driver whose copies write nothing");
  app.add_flag("--json", options.json, "a JSON object");
  app.add_flag("--judge,!--no-judge", options.judge, "fail if the goal is not reached");
  CLI11_PARSE(app, argc, argv);
  if (options.tensor_bytes > 0) options.bytes = options.tensors * options.tensor_bytes;
  bool reached = false;
  const int status = RunInTwoProcesses([&](int control) { RunSource(control, options); },
                                       [&](int control) { reached = RunReader(control, options); });
  if (status != 0) return status;
  return reached || !options.judge ? 0 : 1;
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) { return th::Main(argc, argv); }
