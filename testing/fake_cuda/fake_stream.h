// Streams and events of the fake: each stream has a thread that does its work in order, later than
// the call that asked for it.
//
// Thread-safe.
#ifndef TESTING_FAKE_CUDA_FAKE_STREAM_H_
#define TESTING_FAKE_CUDA_FAKE_STREAM_H_

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace th::testing {

// While a device is held, none of its streams begins anything. One for all streams.
class Gate {
 public:
  explicit Gate(int devices) : devices_(static_cast<size_t>(devices)) {}
  void Hold(int device, bool held);
  void HoldAll(bool held);
  void Pass(int device);
  // Until a stream that has something to do is held.
  void AwaitHeld();

 private:
  struct Device {
    bool held = false;
    int waiting = 0;  // streams in Pass
  };
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<Device> devices_;
};

class FakeEvent {
 public:
  // A record: it has happened once Happened() is called with the number.
  uint64_t Record();
  uint64_t last_record() const;
  void Happened(uint64_t record);
  bool has_happened() const;  // what was recorded last, or nothing was
  void Wait(uint64_t record) const;

 private:
  mutable std::mutex mu_;
  mutable std::condition_variable happened_changed_;
  uint64_t recorded_ = 0;
  uint64_t happened_ = 0;
};

class FakeStream {
 public:
  // A step of work; it returns what the step came to.
  using Work = std::function<CUresult()>;

  FakeStream(Gate* gate, int device);
  // Does what was asked for first.
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  void Add(Work work);
  // Until all that was added before is done. The first failure of any work, which stays.
  CUresult Synchronize();
  CUresult error() const;

 private:
  void Run();

  Gate* const gate_;
  const int device_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  uint64_t added_ = 0;
  uint64_t done_ = 0;
  CUresult error_ = CUDA_SUCCESS;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace th::testing

#endif  // TESTING_FAKE_CUDA_FAKE_STREAM_H_
