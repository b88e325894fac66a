// A version attached with Client::Attach: its tensors, mapped read-only from the memory of a holder
// on this host. client.h says how to call it and what it refuses.
//
//   TH_ASSIGN_OR_RETURN(const th::AttachResult result,
//                       hub->Attach(th::Latest(), {.group = "trainer", .rank = 0}));
//   if (result.attached()) {
//     const th::AttachedTensor embedding = result.version->Find("embedding.weight");
//     ... embedding.data, embedding.spec->bytes ...   // good for as long as result.version lives
//   }
#ifndef TH_CLIENT_ATTACH_H_
#define TH_CLIENT_ATTACH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/transfer/mapped_shard.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/weights/tensor.h"
#include "th/weights/version.h"

namespace th {

struct AttachOptions {
  std::string form = kDefaultForm;
  // The shard: by the digest of its layout, or the one that rank `rank` of `group` has registered,
  // or the only one there is. With the digest of the version attached before
  // (AttachedVersion::layout) the call asks the server one question less.
  std::optional<Digest> layout;
  std::string group;
  uint32_t rank = 0;
  // Also reads all bytes and compares them with the publisher's sums, as AttachedVersion::Verify
  // does. Without it the bytes are what the holder serves to everybody: summed by the publisher
  // itself, or checked as they came.
  bool verify_bytes = false;
  // Limits the attach itself; the reading that verify_bytes adds is not limited by it.
  absl::Duration timeout = absl::Minutes(1);
};

// Good for as long as its AttachedVersion lives.
struct AttachedTensor {
  const TensorSpec* spec = nullptr;  // null: there is no such tensor
  const std::byte* data = nullptr;   // spec->bytes bytes, read-only; null for an empty tensor
};

// A shard of a version, mapped read-only. The destructor unmaps it and ends the lease, which takes
// up to 0.1 s a GB on the calling thread. Movable; reading is thread-safe.
class AttachedVersion {
 public:
  // Client::Attach makes a version of these.
  struct Parts {
    VersionInfo version;
    std::shared_ptr<const ShardLayout> layout;  // shared with the client, for the next one
    std::shared_ptr<const MappedShard> shard;
    std::vector<SegmentChecksum> checksums;  // empty: the layout takes none
    std::string source;
  };
  explicit AttachedVersion(Parts parts) : parts_(std::move(parts)) {}
  AttachedVersion(AttachedVersion&&) = default;
  AttachedVersion& operator=(AttachedVersion&&) = default;

  const VersionInfo& version() const { return parts_.version; }  // with the publisher's attributes
  const ShardLayout& layout() const { return *parts_.layout; }
  const std::string& source() const { return parts_.source; }  // "trainer/0"

  // In canonical order: by name, boxes of one name by slice_begin.
  size_t size() const { return parts_.layout->tensors().size(); }
  AttachedTensor tensor(size_t index) const;
  // The first box of that name. O(log tensors).
  AttachedTensor Find(absl::string_view name) const;

  // Reads all bytes and compares them with the publisher's sums: DATA_LOSS naming the first segment
  // that differs. OK where the layout takes no checksums.
  absl::Status Verify() const;

 private:
  Parts parts_;
};

struct AttachResult {
  bool attached() const { return version.has_value(); }

  UpdateOutcome outcome = UpdateOutcome::kNone;  // kMoved: attached; or kNotAvailable
  NotAvailableReason reason = NotAvailableReason::kNone;
  std::optional<AttachedVersion> version;
};

}  // namespace th

#endif  // TH_CLIENT_ATTACH_H_
