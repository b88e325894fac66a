// Both ends of a connection whose payloads are read over RDMA: what stream::Medium asks for.
//
//   TH_ASSIGN_OR_RETURN(std::shared_ptr<const Fabric> fabric, Fabric::Of(devices, {}));
//   fabric->memory()->Attach(ranges);
//   ServeRdmaMemory(fabric);      // the source's end of an accepted connection
//   ReadRdmaMemory(fabric, {});   // the reader's end of the first connection of a pull
//
// handshake.h says how the two find a pair of devices. Each connection has a queue pair of its own,
// which ends with its objects here: with the source's the reader reads nothing more, with the
// reader's nothing lands any more.
//
// The reader reads the control block after the bytes: it posts that READ when the bytes have
// landed, as adapters may fetch what two outstanding READs ask for in either order. Segments that
// have landed meanwhile share one.
//
// Memory of GPUs that is registered is read and written where it lies. Bytes that have landed there
// are flushed and summed on the GPU, by a thread that waits for it (gpu_landings.h), and count when
// that has ended. GPU memory that is not registered is staged by the ends of the transfer, as over
// any transport.
//
// A destination of the host that is not registered is written through a registered buffer of
// kBounceBytes, a copy more. Memory of the source that nobody attached has no key, and
// comes through the socket; a source whose memory was refused does not serve it (CheckServes).
#ifndef TH_TRANSFER_IBVERBS_RDMA_MEMORY_H_
#define TH_TRANSFER_IBVERBS_RDMA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/transfer/ibverbs/gpu_landings.h"
#include "th/transfer/ibverbs/gpu_registrations.h"
#include "th/transfer/ibverbs/handshake.h"
#include "th/transfer/ibverbs/host_registrations.h"
#include "th/transfer/ibverbs/memory_owner.h"
#include "th/transfer/ibverbs/queue_pair.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/registered_buffer.h"
#include "th/transfer/stream/remote_memory.h"

namespace th::ibverbs {

inline constexpr size_t kBounceBytes = size_t{1} << 20;

struct FabricDeadlines {
  // A queue pair that is to be used reads the source's word within this. Less than
  // TransportLimits::admission_silence, so that another transport is tried, and more than the
  // device takes to send again a packet that was lost (268 ms).
  absl::Duration probe = absl::Milliseconds(350);
  // READs of which none has landed for so long have failed, and the way to the source with them.
  // Devices give up later by themselves. While READs are under way the source owes no other sign of
  // life (RemoteMemory::copying), so that a broken way is never taken for a silent source. Longer:
  // a host that has gone is noticed later, as its other addresses are tried afterwards.
  absl::Duration read = absl::Milliseconds(350);
  // A reader that is closed waits so long for its GPU to end what it flushes and sums, which takes
  // some ms unless it is busy; as long as a buffer's owner waits for a GPU. Then it is given up:
  // the GPU only reads the destination, which nothing writes once the queue pair is destroyed.
  absl::Duration landing = absl::Seconds(10);
};

// The READs of a transport's queue pairs that have ended.
struct ReadCounters {
  std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> signalled{0};
  std::atomic<uint32_t> most_outstanding{0};  // of one queue pair
  std::atomic<uint64_t> bounced_bytes{0};
  std::atomic<uint64_t> gpu_bytes{0};  // that landed in GPU memory, and count
  std::atomic<uint64_t> gap_bytes{0};  // that were read along between tensors, and thrown away
};

// Ways (a device of this process, one of a source's) over which READs have failed, so that other
// pulls do not run into them one after the other. Each is forgotten after kBrokenWayTime: it may
// have been mended, which only another try shows. Thread-safe.
class BrokenWays {
 public:
  static constexpr absl::Duration kBrokenWayTime = absl::Minutes(1);
  // The oldest ones beyond that are forgotten.
  static constexpr size_t kMaxBrokenWays = 256;

  void Note(size_t device, const Gid& peer, absl::Time now);
  bool Has(size_t device, const Gid& peer, absl::Time now) const;

 private:
  struct Way {
    size_t device = 0;  // its place in Fabric::devices()
    Gid peer{};
    absl::Time failed_at;
  };
  mutable absl::Mutex mu_;
  std::deque<Way> ways_ ABSL_GUARDED_BY(mu_);  // the oldest first
};

struct FabricOptions {
  // Registered bytes of host and GPU memory together.
  uint64_t max_registered_bytes = uint64_t{1} << 40;
  FabricDeadlines deadlines;
  std::shared_ptr<ReadCounters> counters;  // with who asks for them; null: nobody does
  // The GPUs whose memory may be registered. Empty: none.
  FindGpus gpus;
};

// The devices and the registered memory that all connections of a transport share. Thread-safe;
// does not change but for its cache and its broken ways.
class Fabric {
 public:
  // RESOURCE_EXHAUSTED: not even a page can be registered, with what to do.
  static absl::StatusOr<std::shared_ptr<const Fabric>> Of(
      std::vector<std::shared_ptr<const RdmaDevice>> devices, FabricOptions options);

  const std::vector<std::shared_ptr<const RdmaDevice>>& devices() const { return devices_; }
  // The places in devices() of those whose port is active now.
  std::vector<size_t> ActiveDevices() const;
  const std::shared_ptr<HostRegistrations>& memory() const { return memory_; }
  const std::shared_ptr<GpuRegistrations>& gpu_memory() const { return gpu_memory_; }
  GpuLandings& gpu_landings() const { return *gpu_landings_; }
  // A random word of this process, for readers to prove that they can read its memory.
  const RegisteredBuffer& word(size_t device) const { return *words_[device]; }
  const FabricDeadlines& deadlines() const { return deadlines_; }
  ReadCounters& counters() const { return *counters_; }
  BrokenWays& broken_ways() const { return *broken_ways_; }

 private:
  Fabric() = default;

  std::vector<std::shared_ptr<const RdmaDevice>> devices_;
  // Shared with the handles of Attach.
  std::shared_ptr<HostRegistrations> memory_;
  std::shared_ptr<GpuRegistrations> gpu_memory_;
  std::unique_ptr<GpuLandings> gpu_landings_;
  std::vector<std::unique_ptr<RegisteredBuffer>> words_;
  FabricDeadlines deadlines_;
  std::shared_ptr<ReadCounters> counters_;  // with who asked for them
  const std::unique_ptr<BrokenWays> broken_ways_ = std::make_unique<BrokenWays>();
};

std::unique_ptr<stream::ServedMemory> ServeRdmaMemory(std::shared_ptr<const Fabric> fabric);
struct ReadOptions {
  uint32_t number = 0;       // of the connection within its pull
  bool checksummed = false;  // what lands in GPU memory is summed there
  MemoryOwner into;          // whose memory the destinations are; unset: any that is registered
};
std::unique_ptr<stream::RemoteMemory> ReadRdmaMemory(std::shared_ptr<const Fabric> fabric,
                                                     const ReadOptions& options);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_RDMA_MEMORY_H_
