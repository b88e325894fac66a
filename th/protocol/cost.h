// The cost of an update to a rank, as it reports it to the server, and the sums that the server
// keeps for a model.
//
// Plain values. A claim is a claim: the server bounds it before it counts (reference_registry).
#ifndef TH_PROTOCOL_COST_H_
#define TH_PROTOCOL_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/topology/location.h"

namespace th {

// A transport's name, of a joining worker's endpoint and in what fills tell: a rank is read over
// what others have joined with.
inline constexpr size_t kMaxTransportNameBytes = 64;

// Bytes received over one transport, from one distance, from the publisher or from a relay.
struct ReceivedBytes {
  std::string transport;  // "tcp"
  Distance distance = Distance::kOtherSite;
  bool publisher = false;
  uint64_t bytes = 0;  // accepted
  friend bool operator==(const ReceivedBytes&, const ReceivedBytes&) = default;
};
// At most so many kinds in one claim, and in one model's totals; further ones are added to those of
// transport "other".
inline constexpr size_t kMaxReceivedKinds = 32;

// A transport that sources announce and their reader did not use, and why: "same_host", "on another
// host".
struct PassedOver {
  std::string transport;
  std::string reason;
  uint64_t sources = 1;  // that were read over another transport, or not at all
  friend bool operator==(const PassedOver&, const PassedOver&) = default;
};
// At most so many reasons in one claim, and in one model's totals; further ones are added to
// "other".
inline constexpr size_t kMaxPassedOverKinds = 16;
// A longer reason is cut.
inline constexpr size_t kMaxPassedOverReasonBytes = 160;

// The cost of a fill, from whoever received the bytes.
struct FillCost {
  std::vector<ReceivedBytes> received;  // each kind once
  std::vector<PassedOver> passed_over;  // each transport and reason once
  uint64_t unchanged_bytes = 0;         // not received: the buffer had them from before
  uint64_t rerouted_bytes = 0;          // received after the first re-route
  uint64_t reread_bytes = 0;            // received and thrown away, so received again
  uint32_t reroutes = 0;                // sources lost or replaced while bytes were missing
  friend bool operator==(const FillCost&, const FillCost&) = default;
};

// A rank's stall in one operation up to RankDone. update: the phases of UpdateResult. unpublish:
// `queue` is the drain.
struct RankCost {
  absl::Duration resolve, queue, transfer, verify;
  FillCost fill;
  friend bool operator==(const RankCost&, const RankCost&) = default;
};

// Where ranks' seconds went.
enum class StallPhase : uint8_t {
  kResolve = 0,   // until the version was known
  kQueue = 1,     // until the first source, the drain of what was held included
  kTransfer = 2,  // until all bytes were there
  kVerify = 3,    // until the root agreed
  kApply = 4,     // until the group's last rank was done
  kDrain = 5,     // of an unpublish
  kFailed = 6,    // in operations that ended badly
};
inline constexpr size_t kStallPhases = 7;
// "resolve".
absl::string_view StallPhaseName(StallPhase phase);

using StallByPhase = std::array<absl::Duration, kStallPhases>;
absl::Duration SumOf(const StallByPhase& stall);
// The seconds by the phases' names, all of them.
std::map<std::string, double> SecondsByPhaseName(const StallByPhase& stall);

// Operations of one kind that ended with one code.
struct FailureCount {
  uint8_t kind = 0;  // an OperationKind
  int code = 0;      // an absl::StatusCode
  uint64_t count = 0;
  friend bool operator==(const FailureCount&, const FailureCount&) = default;
};
inline constexpr size_t kMaxFailureKinds = 64;

// Sums over all ranks of a model since the server's start (or the model's first rank).
struct ModelTotals {
  StallByPhase stall{};
  FillCost fill;
  // Bytes received by groups that moved, over the version's: how often the publisher sent it
  // whole, and how often relays did.
  double copies_published = 0;
  double copies_relayed = 0;
  uint64_t publishes = 0;
  uint64_t moves = 0;  // group updates
  uint64_t not_available = 0;
  uint64_t drains = 0;       // buffers that an unpublish drained
  uint64_t readers_cut = 0;  // that did not let go by the deadline
  uint64_t sources_failed = 0;
  uint64_t sources_suspected = 0;
  uint64_t offloads = 0;
  uint64_t offloads_failed = 0;
  uint64_t leases_expired = 0;
  uint64_t claims_refused = 0;         // costs beyond what can be, left out of all this
  std::vector<FailureCount> failures;  // by kind and code; at most kMaxFailureKinds

  absl::Duration stall_of(StallPhase phase) const { return stall[static_cast<size_t>(phase)]; }
  uint64_t bytes_received() const;
  friend bool operator==(const ModelTotals&, const ModelTotals&) = default;
};

// Adds what was received to a list that holds each kind once, within kMaxReceivedKinds.
void AddReceived(const ReceivedBytes& received, std::vector<ReceivedBytes>& to);
// Adds to a list that holds each transport and reason once, within kMaxPassedOverKinds.
void AddPassedOver(const PassedOver& passed_over, std::vector<PassedOver>& to);
// "same_host: on another host; ibverbs: no device"; "" when there are none.
std::string DescribePassedOver(absl::Span<const PassedOver> passed_over);

// Adds all of one cost to another, its lists within their limits.
void AddFillCost(const FillCost& cost, FillCost& to);

// At most so many transports in one FillProgress; what is passed over is bounded as in a cost.
inline constexpr size_t kMaxTransportsReported = 8;

// How what a rank or a group of them holds came to it, or comes while it is filled.
struct TransportsUsed {
  std::vector<std::string> names;       // that carried bytes, or are about to; each once
  std::vector<PassedOver> passed_over;  // each transport and reason once

  static TransportsUsed Of(const FillCost& cost);
  void Add(const TransportsUsed& other);
  // "tcp (same_host: on another host)"; "" when nothing carried any bytes.
  std::string ToString() const;
  friend bool operator==(const TransportsUsed&, const TransportsUsed&) = default;
};

}  // namespace th

#endif  // TH_PROTOCOL_COST_H_
