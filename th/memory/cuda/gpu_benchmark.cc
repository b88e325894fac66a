// Question: how near do the kernels come to the GPU's memory bandwidth? The peer is the driver's
// own copy, in the same run. Times are of whole calls, with all that the host does for them.
//
//   gpu_benchmark --bytes 1073741824 --json
//
// Exit status 0 if every goal is reached; 1 if not, or if there is no GPU.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_checksums.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/piece_copier.h"
#include "th/memory/cuda/stream.h"
#include "th/status/status_macros.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{256} << 10;
constexpr uint64_t kAlignedTensorBytes = uint64_t{16} << 10;
constexpr uint64_t kOddTensorBytes =
    17'611;  // so that source and destination are aligned differently

struct Options {
  std::string driver = std::string(kCudaLibrary);
  int device = 0;
  uint64_t bytes = uint64_t{1} << 30;
  int runs = 11;
  bool json = false;
};

struct Row {
  std::string what;
  double gbytes_per_s = 0;  // of weights
  std::string baseline;     // empty: it is one
  double ratio = 0;
  double goal = 0;
};

using Measured = std::function<absl::Status()>;

// The median of some runs, after one that is not counted.
absl::StatusOr<double> MedianSeconds(int runs, const Measured& measured) {
  TH_RETURN_IF_ERROR(measured());
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    TH_RETURN_IF_ERROR(measured());
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) {}

  absl::StatusOr<std::vector<Row>> Run() {
    TH_RETURN_IF_ERROR(SetUp());
    TH_RETURN_IF_ERROR(MeasureCopies());
    TH_RETURN_IF_ERROR(MeasureKernels());
    TH_RETURN_IF_ERROR(MeasureCalls());
    return rows_;
  }
  const CudaDevice& device() const { return *device_; }

 private:
  absl::Status SetUp();
  absl::Status MeasureCopies();
  absl::Status MeasureKernels();
  absl::Status MeasureCalls();
  std::vector<DevicePiece> Tensors(uint64_t tensor_bytes) const;
  absl::StatusOr<double> Measure(const std::string& what, uint64_t bytes, const Measured& measured);
  // Waits until the stream has done what it was asked for; the first error of the two.
  absl::Status Ended(const absl::Status& asked) const {
    return asked.ok() ? stream_->Synchronize() : asked;
  }
  // Against the memory's bandwidth. `traffic`: how often the weights' bytes cross it (a copy reads
  // and writes them).
  absl::Status Compare(const std::string& what, uint64_t bytes, double traffic, double goal,
                       const Measured& measured);

  const Options options_;
  std::unique_ptr<CudaDevices> devices_;
  CudaDevice* device_ = nullptr;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<DeviceBuffer> source_buffer_;
  std::unique_ptr<DeviceBuffer> target_buffer_;
  std::unique_ptr<DeviceMemory> source_;
  std::unique_ptr<DeviceMemory> target_;
  double memory_bandwidth_ = 0;  // GB/s read and written
  std::vector<Row> rows_;
};

absl::Status Benchmark::SetUp() {
  TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load(options_.driver));
  TH_ASSIGN_OR_RETURN(devices_, CudaDevices::Open(driver));
  TH_ASSIGN_OR_RETURN(device_, devices_->ByIndex(options_.device));
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device_));
  TH_ASSIGN_OR_RETURN(DeviceBuffer source, DeviceBuffer::Allocate(device_, options_.bytes));
  TH_ASSIGN_OR_RETURN(DeviceBuffer target, DeviceBuffer::Allocate(device_, options_.bytes));
  stream_ = std::make_unique<CudaStream>(std::move(stream));
  source_buffer_ = std::make_unique<DeviceBuffer>(std::move(source));
  target_buffer_ = std::make_unique<DeviceBuffer>(std::move(target));
  TH_ASSIGN_OR_RETURN(source_,
                      DeviceMemory::Register(*devices_, source_buffer_->pointer(), options_.bytes));
  TH_ASSIGN_OR_RETURN(target_,
                      DeviceMemory::Register(*devices_, target_buffer_->pointer(), options_.bytes));
  return absl::OkStatus();
}

absl::StatusOr<double> Benchmark::Measure(const std::string& what, uint64_t bytes,
                                          const Measured& measured) {
  TH_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(options_.runs, measured));
  const double rate = static_cast<double>(bytes) / seconds / 1e9;
  rows_.push_back({what, rate, "", 0, 0});
  return rate;
}

absl::Status Benchmark::Compare(const std::string& what, uint64_t bytes, double traffic,
                                double goal, const Measured& measured) {
  TH_ASSIGN_OR_RETURN(const double rate, Measure(what, bytes, measured));
  rows_.back().baseline = "memory bandwidth";
  rows_.back().ratio = rate * traffic / memory_bandwidth_;
  rows_.back().goal = goal;
  return absl::OkStatus();
}

absl::Status Benchmark::MeasureCopies() {
  TH_ASSIGN_OR_RETURN(
      const double copied, Measure("copy on the device", options_.bytes, [&] {
        return Ended(stream_->CopyOnDevice(target_->address(), source_->address(), options_.bytes));
      }));
  memory_bandwidth_ = 2 * copied;
  return absl::OkStatus();
}

// The kernels alone, their lists being on the device: what they are to be compared with is the
// memory.
absl::Status Benchmark::MeasureKernels() {
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceKernels> kernels, DeviceKernels::Load(device_));
  TH_ASSIGN_OR_RETURN(const auto runs, DeviceList<kernels::LeafRun>::Create(device_, 1));
  const uint64_t leaves = (options_.bytes + kLeafBytes - 1) / kLeafBytes;
  TH_ASSIGN_OR_RETURN(const auto checksums,
                      DeviceList<kernels::Checksum128>::Create(device_, leaves));
  runs.items()[0] = {source_->address(), options_.bytes, 0};
  TH_RETURN_IF_ERROR(runs.ToDevice(*stream_, 1));
  TH_RETURN_IF_ERROR(Compare("kernel: sums", options_.bytes, 1, 0.5, [&] {
    return Ended(
        kernels->ChecksumLeaves(*stream_, {runs.address(), 1, leaves, checksums.address()}));
  }));
  for (const uint64_t tensor_bytes : {kAlignedTensorBytes, kOddTensorBytes}) {
    const absl::string_view kind = tensor_bytes == kOddTensorBytes ? "odd" : "aligned";
    const std::vector<DevicePiece> tensors = Tensors(tensor_bytes);
    TH_ASSIGN_OR_RETURN(const auto list,
                        DeviceList<kernels::CopyPiece>::Create(device_, tensors.size()));
    uint64_t packed = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      list.items()[i] = {tensors[i].address(), tensor_bytes, packed};
      packed += tensor_bytes;
    }
    TH_RETURN_IF_ERROR(list.ToDevice(*stream_, tensors.size()));
    const kernels::CopyPiecesArguments arguments = {list.address(), tensors.size(),
                                                    target_->address(), packed};
    TH_RETURN_IF_ERROR(Compare(absl::StrCat("kernel: gather, ", kind), packed, 2, 0.5,
                               [&] { return Ended(kernels->Gather(*stream_, arguments)); }));
    TH_RETURN_IF_ERROR(Compare(absl::StrCat("kernel: scatter, ", kind), packed, 2, 0.5,
                               [&] { return Ended(kernels->Scatter(*stream_, arguments)); }));
  }
  return absl::OkStatus();
}

// Whole calls, with lists that the host makes, and sums that it folds.
absl::Status Benchmark::MeasureCalls() {
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceChecksums> checksums,
                      DeviceChecksums::Create(device_, {}));
  std::vector<std::vector<DevicePiece>> segments;
  for (uint64_t at = 0; at < options_.bytes; at += kSegmentBytes) {
    segments.push_back({{source_.get(), at, std::min(kSegmentBytes, options_.bytes - at)}});
  }
  TH_RETURN_IF_ERROR(Compare("call: sums of segments", options_.bytes, 1, 0,
                             [&] { return checksums->Checksum(segments).status(); }));
  const std::vector<DevicePiece> tensors = Tensors(kOddTensorBytes);
  const uint64_t bytes = tensors.size() * kOddTensorBytes;
  TH_RETURN_IF_ERROR(Compare("call: sums of odd tensors", bytes, 1, 0,
                             [&] { return checksums->Checksum({tensors}).status(); }));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<PieceCopier> copier, PieceCopier::Create(device_, {}));
  return Compare("call: gather of odd tensors", bytes, 2, 0, [&] {
    return copier->Gather(tensors, {target_.get(), 0, bytes});
  });
}

// Tensors with as many bytes between them as they have.
std::vector<DevicePiece> Benchmark::Tensors(uint64_t tensor_bytes) const {
  std::vector<DevicePiece> tensors;
  for (uint64_t at = tensor_bytes % 2; at + tensor_bytes <= options_.bytes;
       at += 2 * tensor_bytes) {
    tensors.push_back({source_.get(), at, tensor_bytes});
  }
  return tensors;
}

void Print(const CudaDevice& device, const std::vector<Row>& rows, bool json) {
  if (!json) std::printf("%s, %s\n", device.name().c_str(), device.uuid().c_str());
  for (const Row& row : rows) {
    if (json) {
      std::printf(
          "{\"device\":\"%s\",\"what\":\"%s\",\"gbytes_per_s\":%.3f,\"baseline\":\"%s\",\"ratio\":%"
          ".3f,\"goal\":%.2f}\n",
          device.name().c_str(), row.what.c_str(), row.gbytes_per_s, row.baseline.c_str(),
          row.ratio, row.goal);
    } else if (row.baseline.empty()) {
      std::printf("%-28s %9.2f GB/s\n", row.what.c_str(), row.gbytes_per_s);
    } else {
      std::printf("%-28s %9.2f GB/s  %.2f of %s, goal %.2f%s\n", row.what.c_str(), row.gbytes_per_s,
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
  CLI::App app("Kernels beside the driver's own copy, on one GPU.");
  app.add_option("--driver", options.driver, "the CUDA driver's library")->capture_default_str();
  app.add_option("--device", options.device, "its index in this process")->capture_default_str();
  app.add_option("--bytes", options.bytes, "weights; twice as much device memory is taken")
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
    std::fprintf(stderr, "gpu_benchmark: %s\n", rows.status().ToString().c_str());
    return 1;
  }
  th::Print(benchmark.device(), *rows, options.json);
  const bool reached = std::all_of(rows->begin(), rows->end(),
                                   [](const th::Row& row) { return row.ratio >= row.goal; });
  return reached || !judge ? 0 : 1;
}
