// Question: how fast does a shard move from one process's GPU memory into another's, beside the
// driver's own copy of as many bytes through the same link?
//
//   bazel build //th/transfer/cuda_ipc:cuda_ipc_benchmark
//   cuda_ipc_benchmark --source-device 0 --reader-device 1 --bytes 1073741824 --json
//
// Exit status 0 if the goal is reached (--goal, 0.9 of the copy with checksums off); 1 if not, or
// if there is no such GPU.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/stream.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/two_process_benchmark.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

struct Options {
  std::string driver = std::string(kCudaLibrary);
  int source_device = 0;
  int reader_device = 0;
  uint64_t bytes = uint64_t{1} << 30;
  uint64_t tensors = 1;
  int runs = 11;
  bool checksum = false;
  bool json = false;
  bool judge = true;
  double goal = 0.9;
};

template <typename Value>
Value Must(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "cuda_ipc_benchmark: %s\n", value.status().ToString().c_str());
  std::exit(1);
}

// Tensors beside each other in one allocation, with odd gaps where there are several.
class DeviceShard {
 public:
  DeviceShard(const Options& options, int device)
      : devices_(Must(CudaMemoryDevices::Open(Must(CudaDriver::Load(options.driver))))),
        device_(Must(devices_->devices().ByIndex(device))) {
    const uint64_t each = options.bytes / options.tensors;
    const uint64_t stride = options.tensors == 1 ? each : each + 16 + each % 2;
    buffer_ = std::make_unique<DeviceBuffer>(
        Must(DeviceBuffer::Allocate(device_, options.tensors * stride)));
    ShardLayout::Spec spec{.checksum = options.checksum ? ChecksumAlgorithm::kXxh3Leaves
                                                        : ChecksumAlgorithm::kNone};
    StorageMemory memory;
    for (uint64_t i = 0; i < options.tensors; ++i) {
      TensorSpec tensor;
      tensor.name = absl::StrCat("tensor.", i);
      tensor.dtype = DType::kU8;
      tensor.shape = {static_cast<int64_t>(each)};
      spec.tensors.push_back(std::move(tensor));
      memory.regions.push_back({reinterpret_cast<void*>(buffer_->address() + i * stride), each,
                                MemoryKind::kDevice, device_->pci_address()});
    }
    memory.device = Must(devices_->Register(memory.regions));
    store_ = std::make_shared<SegmentStore>(
        std::make_shared<const ShardLayout>(Must(ShardLayout::Build(std::move(spec)))),
        std::move(memory));
  }

  CudaDevice& device() const { return *device_; }
  const CudaDevices& devices() const { return devices_->devices(); }
  const DeviceBuffer& buffer() const { return *buffer_; }
  const std::shared_ptr<SegmentStore>& store() const { return store_; }

 private:
  const std::shared_ptr<CudaMemoryDevices> devices_;
  CudaDevice* const device_;
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

// Serves until the reader closes its end of `control`.
void RunSource(int control, const Options& options) {
  DeviceShard shard(options, options.source_device);
  shard.store()->Publish(BufferGeneration(1));
  const std::atomic<bool> never{false};
  Must(shard.store()->Seal(never));
  AdmitsAll holder(shard.store());
  auto transport = Begin(options, nullptr);
  const auto memory = Must(transport->Attach(shard.store()->regions()));
  transport->AddHolder(kBenchmarkWorker, &holder);
  const std::string address = transport->endpoints()[0].address;
  if (write(control, address.data(), address.size()) < 0) std::exit(1);
  char end = 0;
  while (read(control, &end, 1) == 1) continue;
  transport->RemoveHolder(kBenchmarkWorker);
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

// Returns whether the goal is reached.
bool RunReader(int control, const Options& options) {
  DeviceShard shard(options, options.reader_device);
  const auto counters = std::make_shared<cuda_ipc::CopyCounters>();
  auto transport = Begin(options, counters);
  const auto memory = Must(transport->Attach(shard.store()->regions()));
  char address[512] = {};
  if (read(control, address, sizeof(address) - 1) <= 0) std::exit(1);
  const Endpoint source{.address = address, .transport = kCudaIpcTransport, .site = ""};
  std::vector<double> seconds;
  for (int run = 0; run <= options.runs; ++run) {
    const double took = SecondsToReceive(shard.store(), transport.get(), source, {});
    if (run > 0) seconds.push_back(took);  // the first one imports
  }
  const double copy = Must(CopySeconds(shard, options));
  const double took = Median(seconds);
  const auto bytes = static_cast<double>(options.bytes);
  const char* const way = counters->staged_bytes > 0        ? "staged"
                          : counters->peer_access_bytes > 0 ? "peer access"
                                                            : "same device";
  const double ratio = copy / took;
  if (options.json) {
    std::printf(
        "{\"device\":\"%s\",\"what\":\"cuda_ipc: %s, %llu tensors, checksums %s\","
        "\"gbytes_per_s\":%.3f,\"baseline\":\"copy by the driver\",\"ratio\":%.3f,\"goal\":%.2f}\n",
        shard.device().name().c_str(), way, static_cast<unsigned long long>(options.tensors),
        options.checksum ? "on" : "off", bytes / took / 1e9, ratio, options.goal);
  } else {
    std::printf("cuda_ipc, %-12s %9.2f GB/s  %.2f of the driver's copy (%.2f GB/s), goal %.2f%s\n",
                way, bytes / took / 1e9, ratio, bytes / copy / 1e9, options.goal,
                ratio < options.goal ? ": NOT REACHED" : "");
  }
  return ratio >= options.goal;
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
  app.add_option("--runs", options.runs, "of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--goal", options.goal, "of the driver's copy")->capture_default_str();
  app.add_flag("--checksum", options.checksum, "sums are taken and compared");
  app.add_flag("--json", options.json, "a JSON object");
  app.add_flag("--judge,!--no-judge", options.judge, "fail if the goal is not reached");
  CLI11_PARSE(app, argc, argv);
  bool reached = false;
  const int status = RunInTwoProcesses([&](int control) { RunSource(control, options); },
                                       [&](int control) { reached = RunReader(control, options); });
  if (status != 0) return status;
  return reached || !options.judge ? 0 : 1;
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) { return th::Main(argc, argv); }
