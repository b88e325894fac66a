// A CUDA driver without a GPU, for tests: a libcuda.so.1 whose devices are host memory. The code
// under test opens it as it opens the real one, by path.
//
//   ASSERT_OK_AND_ASSIGN(auto driver, CudaDriver::Load(FakeCuda::Path()));
//   FakeCuda fake;
//   fake.Fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);   // the next call
//
// It keeps devices with UUIDs, allocations with buffer ids, mappings, streams that work later and
// in order, events, our kernels by name (compiled for the host from the same source), and handles
// that other processes open. A device address is no host address: touching it crashes the test.
//
// Environment of a process: TH_FAKE_CUDA_DEVICES (default 2; 0: cuInit finds no device),
// TH_FAKE_CUDA_INIT_ERROR (what cuInit returns, as a number), TH_FAKE_CUDA_REFUSE_PEERS (set:
// RefusePeers), TH_FAKE_CUDA_LOSE_DEVICE_COPIES (set: kernels and copies between devices'
// memory succeed and write nothing), TH_FAKE_CUDA_SYNCHRONIZE_MICROSECONDS (cuStreamSynchronize
// returns so much later, as on a device that has to be asked; for benchmarks).
//
// The fake does not imitate that cuMemFree waits for streams, that null streams wait for others,
// the limits of real devices, or their speed.
#ifndef TESTING_FAKE_CUDA_FAKE_CUDA_H_
#define TESTING_FAKE_CUDA_FAKE_CUDA_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace th::testing {

// Controls the fake of this process. Thread-safe.
class FakeCuda {
 public:
  // Where the test finds the library; for targets with //testing/fake_cuda:libcuda_fake.so in
  // `data`.
  static std::string Path();

  FakeCuda();

  // The next `times` calls of `function` ("cuMemAlloc") fail, after `skipped` that do not.
  void Fail(const std::string& function, CUresult result, int skipped = 0, int times = 1) const;
  // While held, streams begin nothing.
  void HoldStreams(bool held) const;
  // The same of those of one device, by its index: the others go on.
  void HoldStreamsOf(int device, bool held) const;
  // Returns once a stream has something to do that it may not begin.
  void AwaitHeld() const;
  // Contexts, allocations, mappings, streams, events and modules that nobody has given back.
  uint64_t live() const;
  // Memory of other processes that is open or mapped in this one.
  uint64_t imports() const;
  // Where the bytes at a device address lie for the host. For what stands in for an adapter of the
  // network, which reaches device memory past the processor.
  std::byte* AliasOf(void* device_address) const;
  // The calls of cuFlushGPUDirectRDMAWrites.
  uint64_t flushes() const;
  // The bytes that copies from devices to the host were asked for, all in all.
  uint64_t bytes_to_host() const;
  // The calls that waited for a stream or an event, all in all.
  uint64_t synchronizations() const;
  // Sets which of adapters' writes the devices say that they order: a
  // CUGPUDirectRDMAWritesOrdering, NONE by default.
  void OrderWrites(int ordering) const;
  // Devices do not reach each other, from now on.
  void RefusePeers(bool refused) const;
  // Unlike the driver, the fake opens what this very process has exported, from now on: tests have
  // both ends of a transfer in one process.
  void AllowOwnImports(bool allowed) const;

 private:
  void* const library_;
};

}  // namespace th::testing

#endif  // TESTING_FAKE_CUDA_FAKE_CUDA_H_
