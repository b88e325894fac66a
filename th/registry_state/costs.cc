#include "th/registry_state/costs.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th::registry {
namespace {

// Never wraps: a sum of absurd claims is an absurd claim.
uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  return b > most - a ? most : a + b;
}

uint64_t AtMost(uint64_t shard_bytes, uint64_t times) {
  return std::max<uint64_t>(shard_bytes, 1) * times;
}

absl::Status CheckSeconds(const RankCost& cost, absl::Duration longest) {
  absl::Duration sum;
  for (const absl::Duration phase : {cost.resolve, cost.queue, cost.transfer, cost.verify}) {
    if (phase < absl::ZeroDuration()) return absl::InvalidArgumentError("a negative stall");
    sum += phase;
  }
  if (sum <= longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a stall of ", absl::FormatDuration(sum), ", longer than operations last"));
}

bool IsTransportName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxTransportNameBytes;
}

absl::Status CheckPassedOver(const std::vector<PassedOver>& passed_over) {
  if (passed_over.size() > kMaxPassedOverKinds) {
    return absl::InvalidArgumentError(
        absl::StrCat(passed_over.size(), " transports passed over, at most ", kMaxPassedOverKinds));
  }
  for (const PassedOver& one : passed_over) {
    if (!IsTransportName(one.transport) || one.reason.size() > kMaxPassedOverReasonBytes) {
      return absl::InvalidArgumentError(
          "a transport passed over without a name, or with a long name or reason");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReceived(const FillCost& cost, uint64_t shard_bytes) {
  if (cost.received.size() > kMaxReceivedKinds) {
    return absl::InvalidArgumentError(
        absl::StrCat(cost.received.size(), " kinds of sources, at most ", kMaxReceivedKinds));
  }
  if (absl::Status good = CheckPassedOver(cost.passed_over); !good.ok()) return good;
  uint64_t bytes = 0;
  for (const ReceivedBytes& received : cost.received) {
    if (!IsTransportName(received.transport)) {
      return absl::InvalidArgumentError(
          "bytes over a transport without a name, or with a long one");
    }
    bytes = SaturatingSum(bytes, received.bytes);
  }
  const bool good = shard_bytes <= std::numeric_limits<uint64_t>::max() / kMaxShardsReread &&
                    bytes <= AtMost(shard_bytes, kMaxShardsReceived) &&
                    cost.rerouted_bytes <= bytes && cost.unchanged_bytes <= shard_bytes &&
                    cost.reread_bytes <= AtMost(shard_bytes, kMaxShardsReread) &&
                    cost.reroutes <= kMaxReroutesClaimed;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(bytes, " bytes received (", cost.rerouted_bytes, " of them after a re-route), ",
                   cost.unchanged_bytes, " unchanged, ", cost.reread_bytes, " received again and ",
                   cost.reroutes, " re-routes for a shard of ", shard_bytes, " bytes"));
}

// True when nobody waits for what becomes of such a replica: its callers go on with another buffer.
bool IsMadeBeside(const Replica& replica) { return IsTemporary(replica.role); }

// Adds to the rank's own sum, unless its worker is gone, and to its model's.
void AddStall(const Replica& replica, Rank rank, StallPhase phase, absl::Duration stall) {
  if (IsMadeBeside(replica)) return;
  const auto index = static_cast<size_t>(phase);
  replica.group->model->totals.stall[index] += stall;
  const auto found = replica.buffers.find(rank);
  if (found != replica.buffers.end()) found->second->stall[index] += stall;
}
void AddStall(const Buffer& buffer, StallPhase phase, absl::Duration stall) {
  AddStall(*buffer.replica, RankOf(buffer), phase, stall);
}

// Records what one rank waited in one operation.
void RecordStall(const Replica& replica, absl::Duration stall) {
  if (!IsMadeBeside(replica)) replica.group->model->stall_seconds.Record(stall);
}

void AddUpdate(const RankCost& cost, const Buffer& buffer, UpdateParticipant& participant) {
  AddStall(buffer, StallPhase::kResolve, cost.resolve);
  AddStall(buffer, StallPhase::kQueue, cost.queue);
  AddStall(buffer, StallPhase::kTransfer, cost.transfer);
  AddStall(buffer, StallPhase::kVerify, cost.verify);
  AddFillCost(cost.fill, buffer.replica->group->model->totals.fill);
  for (const ReceivedBytes& received : cost.fill.received) {
    (received.publisher ? participant.from_publisher_bytes : participant.from_relays_bytes) +=
        received.bytes;
  }
}

// The bytes of the distinct shards that the group holds.
uint64_t VersionBytes(const Replica& replica) {
  absl::flat_hash_set<const Shard*> seen;
  uint64_t bytes = 0;
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->shard != nullptr && seen.insert(buffer->shard).second) bytes += buffer->bytes;
  }
  return bytes;
}

void CountFailureKind(OperationKind kind, const absl::Status& status, ModelTotals& totals) {
  const auto raw = static_cast<uint8_t>(kind);
  auto found = std::find_if(totals.failures.begin(), totals.failures.end(),
                            [&](const FailureCount& failure) {
                              return failure.kind == raw && failure.code == status.raw_code();
                            });
  if (found != totals.failures.end()) {
    ++found->count;
  } else if (totals.failures.size() < kMaxFailureKinds) {
    totals.failures.push_back({.kind = raw, .code = status.raw_code(), .count = 1});
  }
}

}  // namespace

absl::Status CheckReportedTransports(const TransportsUsed& used) {
  if (used.names.size() > kMaxTransportsReported) {
    return absl::InvalidArgumentError(
        absl::StrCat(used.names.size(), " transports used, at most ", kMaxTransportsReported));
  }
  if (!std::all_of(used.names.begin(), used.names.end(), IsTransportName)) {
    return absl::InvalidArgumentError("a transport without a name, or with a long one");
  }
  return CheckPassedOver(used.passed_over);
}

absl::Status CheckCost(const RankCost& cost, uint64_t shard_bytes, absl::Duration longest) {
  const absl::Status seconds = CheckSeconds(cost, longest);
  return seconds.ok() ? CheckReceived(cost.fill, shard_bytes) : seconds;
}

void NoteTransports(Turn& turn, Buffer& buffer, TransportsUsed used, EventId event) {
  std::vector<PassedOver>& reported = buffer.replica->passed_over_reported;
  std::vector<PassedOver> news;
  for (const PassedOver& one : used.passed_over) {
    const bool is_reported =
        std::any_of(reported.begin(), reported.end(), [&](const PassedOver& each) {
          return each.transport == one.transport && each.reason == one.reason;
        });
    if (is_reported || reported.size() >= kMaxPassedOverKinds) continue;
    reported.push_back(one);
    news.push_back(one);
  }
  const std::string over =
      used.names.empty() ? "" : absl::StrCat(" (read over ", absl::StrJoin(used.names, ", "), ")");
  buffer.content->transports = std::move(used);
  if (news.empty()) return;
  Note(turn, buffer.replica->group->model->key,
       {EventKind::kTransportPassedOver, event, NameOf(buffer).ToString()},
       absl::StrCat(DescribePassedOver(news), over));
}

void CountRankDone(Turn& turn, Buffer& buffer, const Transaction& transaction,
                   Participant& participant, const RankCost& cost) {
  Model& model = *buffer.replica->group->model;
  const absl::Duration longest = turn.state.limits.max_operation_timeout;
  if (absl::Status good = CheckCost(cost, buffer.bytes, longest); !good.ok()) {
    ++model.totals.claims_refused;
    return Note(turn, model.key,
                {EventKind::kClaimRefused, transaction.event, NameOf(buffer).ToString()},
                absl::StrCat("it claims ", std::string(good.message())));
  }
  if (UpdateParticipant* update = participant.if_update()) {
    NoteTransports(turn, buffer, TransportsUsed::Of(cost.fill), transaction.event);
    update->stall = cost.resolve + cost.queue + cost.transfer + cost.verify;
    return AddUpdate(cost, buffer, *update);
  }
  ++model.totals.drains;
  RecordStall(*buffer.replica, cost.queue);
  AddStall(buffer, StallPhase::kDrain, cost.queue);
}

void CountMoved(Turn& turn, const Replica& replica, const Transaction& transaction) {
  ModelTotals& totals = replica.group->model->totals;
  ++totals.moves;
  if (!IsHostCopy(replica.role)) {
    replica.group->model->update_seconds.Record(turn.now - transaction.started);
  }
  uint64_t from_publisher = 0, from_relays = 0;
  for (const auto& [rank, participant] : transaction.participants) {
    const UpdateParticipant& update = participant.update();
    const absl::Duration apply = turn.now - *update.done_at;
    AddStall(replica, rank, StallPhase::kApply, apply);
    RecordStall(replica, update.stall + apply);
    from_publisher += update.from_publisher_bytes;
    from_relays += update.from_relays_bytes;
  }
  // A copy that a group makes in its own host memory, to keep a version, was not sent to anybody.
  const bool kept = replica.role == BufferRole::kOffload;
  const auto bytes = static_cast<double>(VersionBytes(replica));
  if (kept || bytes <= 0) return;
  totals.copies_published += static_cast<double>(from_publisher) / bytes;
  totals.copies_relayed += static_cast<double>(from_relays) / bytes;
}

void CountFailed(Turn& turn, const Replica& replica, const Transaction& transaction,
                 const absl::Status& status) {
  ModelTotals& totals = replica.group->model->totals;
  CountFailureKind(transaction.kind(), status, totals);
  const bool offload = IsHostCopy(replica.role) && transaction.if_update() != nullptr;
  if (offload) ++totals.offloads_failed;
  if (transaction.if_publish() != nullptr) return;  // it takes no buffer away: no stall
  for (const auto& [rank, participant] : transaction.participants) {
    // A rank that was done has reported the time before that.
    const std::optional<absl::Time> done_at = participant.done_at();
    const absl::Duration failed = turn.now - done_at.value_or(participant.asked);
    AddStall(replica, rank, StallPhase::kFailed, failed);
    const UpdateParticipant* const update = participant.if_update();
    if (update != nullptr) {
      RecordStall(replica, update->stall + failed);
      if (!done_at.has_value()) totals.fill.reroutes += update->reroutes;
    } else if (!done_at.has_value()) {  // what a drained rank waited was recorded then
      RecordStall(replica, failed);
    }
  }
}

}  // namespace th::registry
