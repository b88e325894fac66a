// The common part of the transports' benchmarks: a source and a reader in two processes, one shard,
// and the time that a fill takes to receive it. A benchmark that cannot go on prints why and exits.
//
//   return RunInTwoProcesses([](int control) { /* the source */ }, [](int control) {
//     BenchmarkShard shard(bytes, ChecksumAlgorithm::kXxh3Leaves);
//     const double seconds = SecondsToReceive(shard.store, transport.get(), endpoint, {});
//   });
#ifndef TH_TRANSFER_TWO_PROCESS_BENCHMARK_H_
#define TH_TRANSFER_TWO_PROCESS_BENCHMARK_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "th/transfer/fill.h"
#include "th/transfer/transport.h"

namespace th {

inline constexpr WorkerId kBenchmarkWorker(1);

// Memory whose pages are backed: of one tensor, or of so many equal ones (the last takes what is
// left), each allocated by itself.
struct BenchmarkShard {
  BenchmarkShard(uint64_t size, ChecksumAlgorithm checksum, uint64_t tensors = 1);
  // Content that differs from place to place.
  void Write();
  // Serves it, all sums taken.
  void Publish();

  const uint64_t bytes;
  const std::vector<iovec> tensors;  // never freed
  char* const data;                  // of the only tensor; null where there are several
  const std::shared_ptr<SegmentStore> store;
};

// Lets everybody read one store.
class AdmitsAll : public HolderDelegate {
 public:
  explicit AdmitsAll(std::shared_ptr<SegmentStore> store) : store_(std::move(store)) {}
  void OnAdmission(AdmissionRequest, std::function<void(Admission)> decide) override {
    decide({.store = store_, .generation = BufferGeneration(1)});
  }
  void OnReaderBytes(TransferId, uint64_t) override {}
  void OnReaderReleased(TransferId, uint64_t, const std::string&) override {}

 private:
  const std::shared_ptr<SegmentStore> store_;
};

// From the start of a fill of `into`, whose one source `worker` is at `source`, until all of it has
// been received.
double SecondsToReceive(const std::shared_ptr<SegmentStore>& into, Transport* transport,
                        const Endpoint& source, const ReplicatorLimits& limits,
                        WorkerId worker = kBenchmarkWorker);

// Runs `source` in a child process and `reader` in this one, each with its end of a socket to the
// other; the source's reads as ended once the reader has returned. Returns the exit status.
int RunInTwoProcesses(absl::FunctionRef<void(int control)> source,
                      absl::FunctionRef<void(int control)> reader);

}  // namespace th

#endif  // TH_TRANSFER_TWO_PROCESS_BENCHMARK_H_
