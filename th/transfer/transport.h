// The interface that every transport implements (siblings: tcp, same_host, ibverbs,
// cuda_ipc), and that the in-memory fake implements for tests. conformance_suite.h holds what each
// must pass.
//
// Readers pull. A reader opens a Pull to one source buffer with its capability; the source admits
// or refuses it once; then the reader asks for ranges of segments and they arrive straight in the
// destination: what the source holds in the order of the requests, what it has not got yet as it
// arrives there. While nothing that was asked is there it says that it is alive. The list of sums
// is asked for in the same way, and comes beside the segments.
#ifndef TH_TRANSFER_TRANSPORT_H_
#define TH_TRANSFER_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/device_side.h"
#include "th/memory/memory_region.h"
#include "th/mutability_contract/mutability_contract.h"  // TransferId
#include "th/pipeline_replicator/serving_session.h"
#include "th/protocol/capability.h"
#include "th/protocol/messages.h"
#include "th/transfer/extra_bytes.h"
#include "th/transfer/mapped_shard.h"
#include "th/transfer/segment_store.h"
#include "th/weights/checksum.h"
#include "th/weights/segments.h"

namespace th {

// Limits on each reader of a source, and beside them those of the transport itself.
struct TransportLimits : ServingLimits {
  uint32_t data_threads = 2;
  uint32_t connections_per_pull = 2;  // at most; one where a shard is small
  // Likewise from another site, if that is more: on a long way one TCP connection carries no more
  // than its socket buffers in a round trip (6 MB on Linux as it comes: 0.2 GB/s over 30 ms).
  uint32_t connections_per_far_pull = 8;
  uint32_t max_inbound_connections = 4096;
  // The connections of one peer: of one network address, or of one process of this host. Its
  // readers beyond that are refused, with the reason.
  uint32_t max_connections_per_peer = 1024;
  // Less than the second after which Linux sends a lost SYN again, which would not be waited for. A
  // host that has gone is given up within a second: a broken path to it is noticed first
  // (FabricDeadlines::read), then its other endpoints are tried.
  absl::Duration connect_timeout = absl::Milliseconds(600);
  // Until it is admitted a reader waits no longer than this for any word of the source (which says
  // that it is alive while its owner decides). Afterwards silence is the fill's business.
  absl::Duration admission_silence = absl::Milliseconds(450);
  // A reader whose own GPU copies what lies in the source's memory (cuda_ipc), or is at what has
  // landed there (ibverbs), does not take the source, which has nothing to say meanwhile, for
  // silent. Once none of it has ended for so long the GPU hangs, and is given up. A process's first
  // copy may load kernels onto a busy GPU, which takes seconds.
  absl::Duration own_copy_timeout = kDeviceTime;
  // Uplink cap of the whole process in bytes a second; 0: none. A token bucket over all transfers.
  uint64_t uplink_bytes_per_second = 0;
  std::string congestion_control;  // TCP: empty for the system's choice per path
};

// A transfer that a reader asks for, as the holder's owner decides on it.
struct AdmissionRequest {
  TransferId transfer;
  BufferId buffer;
  Capability capability;
  BufferGeneration generation;
};
struct Admission {
  absl::Status status;
  std::shared_ptr<SegmentStore> store;  // when OK
  BufferGeneration generation;
};

// A number for a transfer, unique in this process whatever the transport.
TransferId NextTransferId();

// The holder's owner. Called on data threads; must not block. `decide` may be called later, on any
// thread, exactly once.
class HolderDelegate {
 public:
  virtual ~HolderDelegate() = default;
  virtual void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) = 0;
  // At most ten times a second a transfer: the reader takes bytes.
  virtual void OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) = 0;
  // The transfer is over, whoever ended it; nothing is read from the buffer for it any more. `why`
  // says why the source ended it at once, as when its reader takes no bytes; empty: it did not.
  virtual void OnReaderReleased(TransferId transfer, uint64_t bytes_sent,
                                const std::string& why) = 0;
};

// Takes a pull's bytes. Called on a data thread, serialised a pull, never inline from Open/Ask.
class PullSink {
 public:
  virtual ~PullSink() = default;
  // `lists_checksums`: the source answers AskChecksums.
  virtual void OnAdmitted(BufferGeneration generation, bool lists_checksums) = 0;
  // The next sums of the list that was asked for, in canonical order.
  virtual void OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) = 0;
  // The bytes of `segment` come next. Appends where to put them and returns true, or returns false:
  // the bytes are read and thrown away, and OnSegment is not called.
  virtual bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) = 0;
  // The same where the transport writes to memory of any kind: a sink whose destination is device
  // memory may name that, instead of host memory from which it would have to copy.
  // It may not name memory that `can_write` says no to.
  using CanWrite = absl::FunctionRef<bool(absl::Span<const iovec> into)>;
  virtual bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                                      std::vector<iovec>* iov) {
    return OnSegmentBegins(segment, iov);
  }
  // All of its bytes landed. `sent` is the publisher's sum that came along, `computed` that of what
  // landed (taken while it is in cache).
  virtual void OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) = 0;
  virtual void OnAlive() = 0;
  // The answer to AskMapping: the shard, or why this source's cannot be mapped. OnClosed may come
  // instead. The shard outlives the pull.
  virtual void OnMapped(absl::StatusOr<std::shared_ptr<const MappedShard>> shard) {}
  // A GPU of this process has not ended for too long what the transport has given it: neither the
  // source nor the way there is at fault. `why` names it.
  virtual void OnDeviceHangs(absl::Status why) {}
  // The last call: the pull is dead and no memory of the sink is touched any more, but by a device
  // that hangs (PullTarget::begin_device_write).
  virtual void OnClosed(SourceFailure failure, std::string detail) = 0;
};

// One transfer from one source buffer. Thread-safe. Destroying it without Close() closes it.
class Pull {
 public:
  virtual ~Pull() = default;
  virtual void Ask(SegmentRange range) = 0;
  // Asks for the sums of all segments, which come as they become known at the source. Once, of a
  // source that lists them.
  virtual void AskChecksums() = 0;
  // Asks to use the whole shard where it lies in the source's memory. Once, of a transport that
  // maps().
  virtual void AskMapping() {}
  // Asks the source to send no more segments than it has begun. OnClosed follows once those have
  // arrived; a source that does not know of this goes on with what was asked. Nothing may be asked
  // any more.
  virtual void Finish() = 0;
  // Ends it; OnClosed(kClosed, "closed by the reader") follows. Idempotent.
  virtual void Close() = 0;
  virtual std::string peer() const = 0;  // "tcp 10.0.0.7:4711"
};

struct PullTarget {
  Endpoint endpoint;
  BufferAddress source;
  BufferGeneration generation;
  Capability capability;
  std::shared_ptr<const ShardLayout> layout;
  bool far = false;  // in another site
  // Nothing is asked but sums and a mapping, for which one connection is enough.
  bool to_map = false;
  // The memory of the destination, as Attach was told of it: a transport then uses no registration
  // of other memory that overlaps with it. Shared with the pull; null: unknown.
  std::shared_ptr<const std::vector<MemoryRegion>> into = nullptr;
  // Tells the destination's owner that a device writes there, which the transport has asked to, for
  // as long as what it returns lives, also after OnClosed where the device hangs. On any thread.
  // Null: nobody wants to know.
  std::function<std::shared_ptr<const void>(std::string device)> begin_device_write = nullptr;
  // Counts what the pull holds beside its destination. Shared with the pull until it is dead.
  std::shared_ptr<ExtraBytes> extra_bytes = std::make_shared<ExtraBytes>();
  // Counts what had arrived of segments that were wanted and not complete when the pull was closed.
  // Shared like the one before.
  std::shared_ptr<std::atomic<uint64_t>> cut_bytes = std::make_shared<std::atomic<uint64_t>>(0);
  // Counts what came beside the segments, from between the tensors of the source, and was thrown
  // away. Of a segment no later than OnSegment. Shared like the ones before.
  std::shared_ptr<std::atomic<uint64_t>> packing_overhead_bytes =
      std::make_shared<std::atomic<uint64_t>>(0);
};

// Memory that a transport knows of, for as long as this lives (Transport::Attach).
class AttachedMemory {
 public:
  virtual ~AttachedMemory() = default;
  // The way in which GPU memory was registered, for logs; empty where there is nothing to say.
  virtual std::string how() const { return ""; }
};

// One transport of one process: its listener and its connections. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual absl::string_view name() const = 0;  // Endpoint::transport
  // The endpoints at which our buffers can be read. Valid after construction.
  virtual std::vector<Endpoint> endpoints() const = 0;
  // Says if an endpoint of this transport can be tried from here, by its address alone: OK, or the
  // reason why not. Follows from the endpoint alone, and at once. OUT_OF_RANGE: the transport does
  // not lead there, and nothing is amiss ("on another host"). FAILED_PRECONDITION,
  // INVALID_ARGUMENT: it should, and something forbids it ("in another network namespace of this
  // host").
  virtual absl::Status Reach(const Endpoint& endpoint) const = 0;
  // True if a shard may be used in the source's memory over it (Pull::AskMapping).
  virtual bool maps() const { return false; }
  // True if a GPU of this process fetches what is asked for: it is fast, and slow to begin.
  virtual bool copies_by_device() const { return false; }
  // The parts of this host that it does without, each with the reason: "mlx5_1: port 1 is down
  // ...".
  virtual std::vector<std::string> left_out() const { return {}; }
  // Tells the transport of memory that transfers will read from or write to: the storages of a
  // buffer and its control block (SegmentStore::regions). A transport that has to register memory
  // or to test it does so here, once for all transfers. Memory that no transport was told of works
  // too, at the price of a copy through the connection. The handle must end before the memory is
  // unmapped or becomes something else, and after every transfer with it; it may outlive the
  // transport. RESOURCE_EXHAUSTED, FAILED_PRECONDITION: the memory cannot be registered, with what
  // to do.
  virtual absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) = 0;
  // Lets `delegate` decide on transfers from the buffers of `worker`; it outlives its removal.
  // False: a delegate decides on them already, and goes on. Two servers that know nothing of each
  // other may give a number twice.
  virtual bool AddHolder(WorkerId worker, HolderDelegate* delegate) = 0;
  // Closes its transfers; returns when no call into the delegate is under way or will come. Not to
  // be called on a data thread.
  virtual void RemoveHolder(WorkerId worker) = 0;
  // Ends one served transfer where its segment ends, and takes no request for it any more;
  // OnReaderReleased follows, after limits.finish_timeout at the latest.
  virtual void FinishTransfer(TransferId transfer) = 0;
  // Ends one served transfer at once; OnReaderReleased follows.
  virtual void CutTransfer(TransferId transfer) = 0;
  // `sink` outlives OnClosed.
  virtual std::unique_ptr<Pull> Open(PullTarget target, PullSink* sink) = 0;
  // Payload bytes sent and received on behalf of transfers since the start.
  struct Counters {
    uint64_t bytes_sent = 0, bytes_received = 0, transfers_served = 0, transfers_refused = 0;
  };
  virtual Counters counters() const = 0;
};

// The one of that name; null: this process does not use it.
Transport* FindTransport(absl::Span<Transport* const> transports, absl::string_view name);

}  // namespace th

#endif  // TH_TRANSFER_TRANSPORT_H_
