// The values that Client::Receive takes and gives. It receives a version, or some of its tensors,
// through a little host memory, for engines that load weights by name and have no buffer of the
// shard's layout. What Receive returns and refuses stands with it in client.h.
//
//   std::map<std::string, std::string> parts;  // tensors that come in more than one slice
//   TH_ASSIGN_OR_RETURN(
//       const th::ReceiveResult received,
//       hub->Receive(th::Latest(),
//                    {.group = "trainer", .rank = 0, .tensors = {"model.layers.*"},
//                     .limit_bytes = uint64_t{64} << 20},
//                    [&](const th::ReceivedSlice& slice) {
//                      if (slice.whole()) return engine.Load(slice.tensor.name, slice.bytes);
//                      std::string& part = parts[slice.tensor.name];
//                      part.append(slice.bytes.data(), slice.bytes.size());
//                      return slice.last() ? engine.Load(slice.tensor.name, part)
//                                          : absl::OkStatus();
//                    }));
#ifndef TH_CLIENT_RECEIVE_H_
#define TH_CLIENT_RECEIVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/protocol/messages.h"
#include "th/weights/digest.h"
#include "th/weights/tensor.h"
#include "th/weights/version.h"

namespace th {

struct ReceiveOptions {
  std::string form = kDefaultForm;
  // Which shard. Its layout's digest (WeightBuffer::layout_digest); or else the shard of rank
  // `rank` of `group`, as that rank has it registered; or else, with both empty, the only one that
  // there is.
  std::optional<Digest> layout;
  std::string group;
  uint32_t rank = 0;
  // Names, or patterns with * ? [a-z]. Empty: all. Tied names come each under its own name.
  std::vector<std::string> tensors;
  // The limit of host memory for what has arrived and is not taken yet; at least one segment of the
  // shard.
  uint64_t limit_bytes = uint64_t{64} << 20;
  // For all of it, the time that `take` needs included.
  absl::Duration timeout = absl::Minutes(10);
};

// A tensor, or a slice of one that does not lie in one segment. Good until `take` returns.
struct ReceivedSlice {
  const TensorSpec& tensor;      // name, dtype, shape, where it lies in the whole tensor
  uint64_t offset = 0;           // of the first byte in the tensor
  absl::Span<const char> bytes;  // as published: they match the publisher's sum

  bool whole() const { return bytes.size() == tensor.bytes; }
  bool last() const { return offset + bytes.size() == tensor.bytes; }
};

// Takes one slice; runs on the thread that called Receive. An error ends the receive with it.
using TakeSlice = std::function<absl::Status(const ReceivedSlice&)>;

struct ReceiveResult {
  bool received() const { return outcome == UpdateOutcome::kMoved; }

  UpdateOutcome outcome = UpdateOutcome::kNone;  // kMoved, or kNotAvailable: nothing was taken
  NotAvailableReason reason = NotAvailableReason::kNone;
  VersionInfo version;  // with the publisher's attributes
  uint64_t tensors = 0;
  uint64_t slices = 0;
  uint64_t bytes = 0;           // taken, of tied names each
  uint64_t bytes_received = 0;  // of the segments that hold them
  uint64_t ring_bytes = 0;      // of host memory that was held for them
  // Beyond the ring, at one time, as in UpdateResult.
  uint64_t peak_extra_bytes = 0;
  uint32_t reroutes = 0;
  uint64_t reread_bytes = 0;
  uint64_t corrupt_segments = 0;     // received, refused, and received again
  std::vector<std::string> sources;  // "rollout-1/1"
};

}  // namespace th

#endif  // TH_CLIENT_RECEIVE_H_
