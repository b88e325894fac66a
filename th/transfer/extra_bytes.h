// Counts the memory that the transfers of one fill hold outside of its destination: requests that
// wait for their socket, control frames, descriptions of pieces, and the buffer into which unwanted
// bytes are read. The kernel's own socket buffers are not counted.
//
// Thread-safe.
#ifndef TH_TRANSFER_EXTRA_BYTES_H_
#define TH_TRANSFER_EXTRA_BYTES_H_

#include <atomic>
#include <cstdint>

namespace th {

class ExtraBytes {
 public:
  // One holder's share goes from `before` to `after`.
  void Change(uint64_t before, uint64_t after) {
    // Unsigned: a share that shrinks adds a number that wraps around.
    const uint64_t held = held_.fetch_add(after - before) + (after - before);
    uint64_t peak = peak_.load();
    while (held > peak && !peak_.compare_exchange_weak(peak, held)) {
    }
  }
  uint64_t held() const { return held_.load(); }
  // The most that was held at one time.
  uint64_t peak() const { return peak_.load(); }

 private:
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> peak_{0};
};

}  // namespace th

#endif  // TH_TRANSFER_EXTRA_BYTES_H_
