// The options of the verbs of a buffer: register, publish, unpublish, update, stage, apply.
//
//   weights.Publish(step, {.attributes = {{"reward", "0.71"}}});
//   weights.Update(th::Latest(), {.timeout = absl::Minutes(2), .on_progress = Draw});
#ifndef TH_CLIENT_VERB_OPTIONS_H_
#define TH_CLIENT_VERB_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// `back`: so many published versions before it.
inline VersionSelector Latest(uint32_t back = 0) { return LatestVersion{.back = back}; }

struct RegisterOptions {
  std::string name = "weights";  // all ranks of the group give a buffer the same name
  std::string form = kDefaultForm;
  uint64_t segment_bytes = 0;  // 0: chosen from the shard's size
  // Content without them is compared with nothing: while somebody else holds a version, publishing
  // its label again is ALREADY_EXISTS.
  bool checksums = true;
};

// After which the caller's own work on the memory is done: only "now" exists. What a GPU's stream
// is still writing is waited for by PublishOptions::after_cuda_event.
struct AfterNothing {};

// Where a publication is served from.
enum class Snapshot : uint8_t {
  kNone = 0,  // the tensors themselves, which are frozen until Unpublish has returned
  kHost = 1,  // a copy in host memory, under ClientOptions::snapshot_limit_bytes
};

struct PublishOptions {
  Attributes attributes;                       // handed to readers; at most kMaxAttributesBytes
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to have published
  std::variant<AfterNothing> after;
  // Set when this buffer holds another form (fused, quantised) of a version that the group holds in
  // a second buffer, or has received: the label is that version's, and readers of this buffer's
  // form find it under the same version. NOT_FOUND: it is not published (any more).
  std::optional<VersionSequence> derived_from;
  // kHost: Publish copies the tensors before it returns; from then on they are the caller's to
  // write or to free, and only the copy is published. Unpublish then waits for readers of the copy
  // alone. Without room RESOURCE_EXHAUSTED, and nothing is published; with snapshot_or_in_place it
  // goes on in place: see PublishResult::snapshot_bytes, or WeightBuffer::snapshot_bytes.
  Snapshot snapshot = Snapshot::kNone;
  bool snapshot_or_in_place = false;
  // Tensors in GPU memory: Publish returns once what this CUevent (torch: Event.cuda_event) of
  // their GPU has recorded by now has happened, so that what a stream is still writing is never
  // read. Within `timeout` (DEADLINE_EXCEEDED). INVALID_ARGUMENT where no tensor lies on a GPU.
  // Without it the caller sees to that itself (torch.cuda.synchronize).
  std::optional<uintptr_t> after_cuda_event;
  // Reserved: parts of a version (base, lora/x, draft). Anything but empty is UNIMPLEMENTED.
  std::string component;
};
struct UnpublishOptions {
  // Readers in flight are cut after this long; the call ends soon after.
  absl::Duration drain_timeout = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to come
  // The effect on the last replica of a retained version. kOffload: it is copied to host memory
  // first, under offload_limit_bytes; without room FAILED_PRECONDITION naming the rank, the buffer
  // still published, as with DEADLINE_EXCEEDED before anything began. With the server away what it
  // has named is copied where there is room, and goes where there is none. kDrop: it goes, and with
  // it the version, also where other ranks of the group ask for kOffload.
  OnRetention on_retention = OnRetention::kOffload;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;  // of a copy, beside `timeout`
};
// The progress of this rank's shard, while it arrives.
struct UpdateProgress {
  VersionInfo version;
  uint64_t bytes_received = 0;  // and checked; what is unchanged counts
  uint64_t bytes_total = 0;
  std::string source;     // "rollout-1/1", or several with commas
  std::string transport;  // "tcp"
};
struct UpdateOptions {
  std::string form;       // empty: the buffer's own; another one is UNIMPLEMENTED
  VersionSequence floor;  // nothing older than this
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration drain_timeout = absl::Seconds(5);
  // As for Unpublish: what was held before. All ranks alike: INVALID_ARGUMENT where they disagree.
  OnRetention on_retention = OnRetention::kOffload;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
  // Straight into the buffer, even where staging_limit_bytes is set. All ranks alike.
  bool in_place = false;
  // While nobody in the group's site holds the version whole, and somebody brings it there: kWait
  // receives it as it comes; kSkip and kCopy end at once as not available (kSeeding), the buffer
  // serving what it has: ask again later. With nobody to bring it kSkip does so itself; kCopy does
  // in host memory (within offload_limit_bytes, for `timeout`; without room as kSkip) and ends as
  // not available too. All ranks ask alike. Without a site, or over several, a group waits.
  WhenSeeding when_seeding = WhenSeeding::kWait;
  std::variant<AfterNothing> after;
  // Up to twenty times a second, on a TensorHub thread; must not block or call into this buffer.
  std::function<void(const UpdateProgress&)> on_progress;
};

struct StageOptions {
  VersionSequence floor;  // nothing older than this
  absl::Duration timeout = absl::Minutes(10);
  // As of UpdateOptions, but kCopy does what kSkip does: what is staged is a copy already.
  WhenSeeding when_seeding = WhenSeeding::kWait;
  std::function<void(const UpdateProgress&)> on_progress;  // as of UpdateOptions
};
struct ApplyOptions {
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to come, and to copy
  absl::Duration drain_timeout = absl::Seconds(5);
  OnRetention on_retention = OnRetention::kOffload;  // as for Unpublish: what was held before
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
};

}  // namespace th

#endif  // TH_CLIENT_VERB_OPTIONS_H_
