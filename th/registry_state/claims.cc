#include "th/registry_state/claims.h"

#include <algorithm>
#include <compare>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

constexpr int kCounterBits = 32;  // of a worker id and of a generation, below the epoch

Epoch EpochOf(uint64_t numbered) { return Epoch(static_cast<uint32_t>(numbered >> kCounterBits)); }

bool GivenByThisProcess(const RegistryState& state, const ResumeClaim& claim) {
  const StateIdentity& identity = state.identity;
  const size_t count = std::min(identity.of_this_process, identity.epoch_ids.size());
  return claim.cluster == identity.cluster &&
         std::count(identity.epoch_ids.end() - static_cast<std::ptrdiff_t>(count),
                    identity.epoch_ids.end(), claim.epoch_id) > 0;
}

bool SameMembership(const ResumeClaim& a, const ResumeClaim& b) {
  return a.cluster == b.cluster && a.epoch_id == b.epoch_id && a.worker == b.worker &&
         a.secret == b.secret;
}

// When a membership was confirmed last, as far as two that were not numbered by one state can be
// compared: epochs rise over all states that a fleet has lived through. What this process gave
// came after every claim that it did not give.
struct ConfirmedAt {
  bool by_this_process = false;
  Epoch epoch;
  friend auto operator<=>(const ConfirmedAt&, const ConfirmedAt&) = default;
};

ConfirmedAt WhenConfirmed(const RegistryState& state, const ResumeClaim& claim) {
  return {GivenByThisProcess(state, claim), claim.epoch};
}

ConfirmedAt WhenConfirmed(const RegistryState& state, const Worker& worker) {
  if (worker.came_with.has_value()) return WhenConfirmed(state, *worker.came_with);
  return {true, state.epoch};
}

}  // namespace

bool IsKnown(const RegistryState& state, const ResumeClaim& claim) {
  const std::vector<EpochId>& epoch_ids = state.identity.epoch_ids;
  return claim.cluster == state.identity.cluster &&
         std::find(epoch_ids.begin(), epoch_ids.end(), claim.epoch_id) != epoch_ids.end();
}

bool CanHaveCome(GroupGeneration generation, Epoch epoch) {
  constexpr uint64_t kCounter = (uint64_t{1} << kCounterBits) - 1;
  return EpochOf(generation.value) <= epoch &&
         (generation.value & kCounter) < kGenerationsOfAnEpoch;
}

bool IsUpToDate(const RegistryState& state, const std::optional<ResumeClaim>& came_with,
                Lineage lineage, const DurableModel& durable) {
  if (came_with.has_value() && !GivenByThisProcess(state, *came_with)) return false;
  return std::none_of(
      durable.roll_backs.begin(), durable.roll_backs.end(),
      [&](const DurableRollBack& roll_back) { return roll_back.lineage > lineage; });
}

absl::Status CheckClaim(const RegistryState& state, const ResumeClaim& claim) {
  const bool impossible = claim.worker == WorkerId() || EpochOf(claim.worker.value) > claim.epoch ||
                          !CanHaveCome(claim.group_generation, claim.epoch) ||
                          claim.lineage > kLastLineage;
  if (impossible) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker ", claim.worker.value, " cannot have joined in epoch ", claim.epoch.value,
        " with generation ", claim.group_generation.value, " and lineage ", claim.lineage.value));
  }
  if (claim.epoch > state.epoch && claim.epoch > kLastEpoch) {
    return absl::InvalidArgumentError(absl::StrCat("epoch ", claim.epoch.value,
                                                   " cannot have begun: the last one that a claim "
                                                   "may name is ",
                                                   kLastEpoch.value));
  }
  if (claim.cluster != state.identity.cluster) return absl::OkStatus();
  const bool proven = TH_MUTATE(
      kResumeWithoutSecret,
      (claim.secret == DeriveMembershipSecret(state.identity.key, claim.worker, claim.epoch_id)),
      true);
  if (proven) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the claim to be worker ", claim.worker.value,
                   " does not have the secret that this worker was given; join as a new process"));
}

bool Outdoes(const RegistryState& state, const ResumeClaim& claim) {
  if (claim.epoch != state.epoch) return claim.epoch > state.epoch;
  return TH_MUTATE(kShareAnEpoch, !IsKnown(state, claim), false);
}

Worker* FindClaimed(const RegistryState& state, const ResumeClaim& claim, Worker* holder_of_rank) {
  if (IsKnown(state, claim)) return FindWorker(state, claim.worker);
  const bool came_so = holder_of_rank != nullptr && holder_of_rank->came_with.has_value() &&
                       SameMembership(*holder_of_rank->came_with, claim);
  return came_so ? holder_of_rank : nullptr;
}

bool StaysBefore(const RegistryState& state, const Worker& holder, const ResumeClaim& claim) {
  const bool foreign_holder = holder.came_with.has_value() && !IsKnown(state, *holder.came_with);
  const bool foreign = !IsKnown(state, claim);
  if (!foreign_holder && !foreign) return holder.id > claim.worker;
  const bool same_epoch = foreign_holder && foreign && holder.came_with->cluster == claim.cluster &&
                          holder.came_with->epoch_id == claim.epoch_id;
  if (same_epoch && holder.came_with->worker != claim.worker) {
    return holder.came_with->worker > claim.worker;
  }
  const auto order = WhenConfirmed(state, holder) <=> WhenConfirmed(state, claim);
  if (order != 0) return TH_MUTATE(kOldProcessWins, order > 0, order < 0);
  return holder.connection.has_value();
}

}  // namespace th::registry
