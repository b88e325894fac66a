// Payloads that a reader takes out of the source's memory instead of receiving them through the
// socket: one object at each end of a connection. same_host copies them with process_vm_readv, at
// once; ibverbs reads them over a queue pair, and they complete later.
//
//   source                                   reader
//   ServedMemory::Offer()    ── Memory ───►  RemoteMemory::HandleOffer()
//   ServedMemory::HandleAnswer() ◄─ Memory ─ (its answer, where it has one)
//   ServedMemory::KeyOf()    ── Located ──►  RemoteMemory::Start(), then Poll()
//
// What Offer, HandleOffer and HandleAnswer say is a matter of the two ends alone, at most
// kMaxControlBodyBytes at a time. A reader asks to be admitted once its end is ready(); an end that
// cannot become ready ends the pull with kConnect, so that the reader takes another transport.
//
// Each object belongs to the loop of its connection; its methods run there and do not block on the
// peer.
#ifndef TH_TRANSFER_STREAM_REMOTE_MEMORY_H_
#define TH_TRANSFER_STREAM_REMOTE_MEMORY_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/transfer/mapped_shard.h"
#include "th/transfer/stream/frames.h"
#include "th/weights/checksum.h"

namespace th::stream {

// A reader may answer all segments of a window at once, each with a frame of some 40 bytes, and
// keeps those that its socket does not take.
inline constexpr size_t kMaxWindowSegments = 1024;

// The source's end. Once it is destroyed the reader reads nothing more of this process through it,
// or what it reads is refused by the control block.
class ServedMemory {
 public:
  virtual ~ServedMemory() = default;
  // The first words to the reader. An error, which is told to the reader: it cannot be served over
  // this transport.
  virtual absl::StatusOr<std::string> Offer() = 0;
  // The reader's answer. Returns what to say back (empty: nothing), or why it cannot be served.
  virtual absl::StatusOr<std::string> HandleAnswer(absl::string_view answer) = 0;
  // The key under which the reader may read these bytes; nullopt: it cannot, and they go through
  // the socket.
  virtual std::optional<uint32_t> KeyOf(const iovec& piece) = 0;

  // Bytes of the shard's stream that lie side by side.
  struct Run {
    uint64_t stream_offset = 0;
    iovec memory{};
  };
  // Returns what the reader needs to use the runs where they lie, at most kMaxMappingBytes; or why
  // it cannot. From then on until this ends, the memory is not written before it has been seen
  // whether the reader uses it.
  virtual absl::StatusOr<std::string> Map(absl::Span<const Run> runs) {
    return absl::UnimplementedError("this transport maps no memory of the source");
  }
  // True: pieces may lie in device memory.
  virtual bool serves_devices() const { return false; }
  // Limits what the reader may have to read at one time, of each connection; the last segment may
  // exceed `bytes`. Less, and it waits for the next place; more, and a transfer that is to end
  // takes longer. At most kMaxWindowSegments.
  struct Window {
    uint64_t bytes = uint64_t{4} << 20;
    size_t segments = 64;
  };
  virtual Window window() const { return {}; }
  // OK: the memory of the buffer that the reader has been admitted to can be read over this
  // connection. An error is told to the reader, which takes another transport.
  virtual absl::Status CheckServes(absl::Span<const MemoryRegion> regions) {
    return absl::OkStatus();
  }
};

// The reader's end. Once it is destroyed nothing is written into any destination any more, but by a
// GPU that was given up: the destructor waits for what is, which End lets its owner find out
// without blocking.
class RemoteMemory {
 public:
  // One Start that has ended.
  struct Read {
    absl::Status status;
    // The source's ControlBlock, read after the bytes: its generation and its life. Valid whenever
    // `status` is OK; where it is not, it may still tell that the buffer is another one by now.
    struct Control {
      uint64_t generation = 0;
      uint64_t life = 0;
    };
    std::optional<Control> control;
    // The sum of what has landed, where this end has taken it: it must where a destination is no
    // host memory.
    std::optional<SegmentChecksum> checksum = std::nullopt;
    // True where `status` says nothing against the source: its memory cannot be read from here.
    bool lost = false;
  };

  virtual ~RemoteMemory() = default;
  // The source has said `offer`. Returns the answer (empty: none), or why its memory cannot be read
  // from here: INVALID_ARGUMENT where the words make no sense.
  virtual absl::StatusOr<std::string> HandleOffer(absl::string_view offer) = 0;
  // True once the source's memory has been seen to be readable.
  virtual bool ready() const = 0;
  // Becomes readable when Poll may have something new. -1: Poll says all right after HandleOffer
  // and Start.
  virtual int fd() const = 0;
  // True: destinations may lie in device memory, if CanWrite says so.
  virtual bool writes_devices() const { return false; }
  // True while what was started is under way without the source's help: this process copies it, its
  // adapter reads it (until a deadline of this end's own), or its GPU finishes it. Then the
  // source's silence is none.
  virtual bool copying() const { return false; }
  // True for one that has failed if another connection would read over other devices, which are not
  // known to have failed.
  virtual bool HasAnotherWay() const { return false; }
  // True if a destination that is not all host memory can be written. Asked just before Start.
  virtual bool CanWrite(absl::Span<const iovec> into) { return writes_devices(); }
  // Begins to copy `from` (in the source's address space) to `into`, which have the same sum of
  // lengths and stay valid until the end of it, and then to read the control block; with the next
  // Poll at the latest. Only once ready.
  virtual void Start(absl::Span<const Located::Piece> from, absl::Span<const iovec> into,
                     const ControlPlace& control) = 0;
  // True: Start only notes what is to be copied, and Poll begins it, so that what has come together
  // is copied together. Then Poll is called once a turn of the loop, else for each MiB too.
  virtual bool copies_together() const { return false; }
  // Bytes that were read beside those that were asked for, and thrown away: what lies between
  // tensors that are read together.
  virtual uint64_t packing_overhead_bytes() const { return 0; }
  // The next read that has ended, in the order of Start; nullopt: none yet. An error: the source's
  // memory cannot be read any more, or could not be made ready.
  virtual absl::StatusOr<std::optional<Read>> Poll() = 0;
  // The devices that copying() waits for, for messages: "0000:07:00.0".
  virtual std::string devices() const { return ""; }
  // Gives up what was started and has not ended; nothing but End is called afterwards. True:
  // nothing is written into any destination any more. False: a GPU of this process is still at it,
  // which cannot be stopped; fd() becomes readable when that may be over, and this is to be asked
  // again. With `hangs` the GPU is left to itself and the answer is true: the owner of the
  // destination knows of its writes (ReadSetup::begin_device_write).
  virtual bool End(bool hangs) { return true; }

  // The shard that ServedMemory::Map has named, in this process's memory, and the control block as
  // it was once nobody would write the shard any more. INVALID_ARGUMENT: the words make no sense.
  struct MappedInPlace {
    std::shared_ptr<const MappedShard> shard;  // shared with whoever uses it
    Read::Control control;
  };
  virtual absl::StatusOr<MappedInPlace> Map(absl::string_view words, const ControlPlace& control) {
    return absl::UnimplementedError("this transport maps no memory of the source");
  }
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_REMOTE_MEMORY_H_
