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
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/transfer/stream/frames.h"

namespace th::stream {

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
};

// The reader's end. Once it is destroyed nothing is written into any destination any more.
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
  };

  virtual ~RemoteMemory() = default;
  // What the source says. Returns the answer (empty: none), or why its memory cannot be read from
  // here: INVALID_ARGUMENT where the words make no sense.
  virtual absl::StatusOr<std::string> HandleOffer(absl::string_view offer) = 0;
  // True once the source's memory has been seen to be readable.
  virtual bool ready() const = 0;
  // Becomes readable when Poll may have something new. -1: Poll says all right after HandleOffer
  // and Start.
  virtual int fd() const = 0;
  // Begins to copy `from` (in the source's address space) to `into`, which have the same sum of
  // lengths and stay valid until the end of it, and then to read the control block. Only once
  // ready.
  virtual void Start(absl::Span<const Located::Piece> from, absl::Span<const iovec> into,
                     const ControlPlace& control) = 0;
  // The next read that has ended, in the order of Start; nullopt: none yet. An error: the source's
  // memory cannot be read any more, or could not be made ready.
  virtual absl::StatusOr<std::optional<Read>> Poll() = 0;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_REMOTE_MEMORY_H_
