#include "th/simulator/scenarios/scenario_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

StallCause CauseOf(WaitsFor what) {
  switch (what) {
    case WaitsFor::kServer:
      return StallCause::kServer;
    case WaitsFor::kDrain:
      return StallCause::kDrain;
    case WaitsFor::kSource:
      return StallCause::kSource;
    case WaitsFor::kBytes:
      return StallCause::kBytes;
    case WaitsFor::kChecksums:
      return StallCause::kChecksums;
    case WaitsFor::kGroup:
      return StallCause::kGroup;
  }
  return StallCause::kServer;
}

}  // namespace

ScenarioGroup::ScenarioGroup(Cluster* cluster, const Scenario* scenario,
                             const ScenarioFamily* family, size_t number,
                             const ScenarioPlaces* places)
    : cluster_(cluster),
      scenario_(scenario),
      family_(family),
      number_(number),
      name_(family->groups[number]),
      places_(places),
      members_(family->ranks) {
  for (uint32_t rank = 0; rank < family->ranks; ++rank) {
    RankResult& result = members_[rank].result;
    result.name = RankName{name_, Rank(rank)}.ToString();
    result.group = name_;
    result.role = family->role;
    result.host = family->places[number][rank].host;
  }
}

// ---- lives

void ScenarioGroup::Join(std::function<void()> ready) {
  joined_ = true;
  ready_ = std::move(ready);
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    Member* member = &members_[rank];
    const SimulatedWorker* worker = member->worker;
    const bool lives = worker != nullptr && worker->alive() && !worker->ended().has_value();
    if (!lives) Start(member, rank);
  }
}

void ScenarioGroup::Start(Member* member, uint32_t rank) {
  if (member->worker != nullptr) {
    member->worker->Kill();
    member->result.bytes_sent +=
        member->worker->segments_sent() * cluster_->wire_bytes_per_segment();
  }
  WorkerSpec spec;
  spec.name = {name_, Rank(rank)};
  spec.ranks = family_->ranks;
  spec.shard = static_cast<int>(rank % scenario_->shards);
  spec.location = family_->places[number_][rank];
  spec.spot = family_->role == GroupRole::kSpot;
  const uint64_t shard_bytes = cluster_->LayoutOf(spec.shard)->bytes();
  spec.offload_limit_bytes = family_->copies * shard_bytes;
  spec.staging_limit_bytes = family_->stages ? shard_bytes : 0;
  member->worker = cluster_->Start(std::move(spec));
  Listen(member);
}

void ScenarioGroup::Listen(Member* member) {
  SimulatedWorker* const worker = member->worker;
  worker->on_ready = [this] { ReportReady(); };
  worker->on_done = [this, member](const OperationDone& done) { HandleDone(member, done); };
  worker->on_accepted = [this, member](const std::string& source) {
    HandleAccepted(member, source);
  };
  worker->on_wait = [this, member](WaitsFor what) {
    if (what == WaitsFor::kBytes) member->waits_for_bytes_since = cluster_->now();
    if (member->calling && counts_) member->clock.Switch(CauseOf(what), cluster_->now());
  };
}

void ScenarioGroup::ReportReady() {
  if (ready_ == nullptr) return;
  for (const Member& member : members_) {
    if (member.worker == nullptr || !member.worker->ready()) return;
  }
  reporting_ready_ = true;
  cluster_->Post(absl::ZeroDuration(), [this, ready = std::exchange(ready_, nullptr)] {
    reporting_ready_ = false;
    ready();
  });
}

bool ScenarioGroup::CanCall() const {
  return joined_ && !calling() &&
         std::all_of(members_.begin(), members_.end(), [](const Member& member) {
           return member.worker->alive() && member.worker->ready() &&
                  !member.worker->ended().has_value();
         });
}

// ---- calls

void ScenarioGroup::Call(StallCause cause, bool counts,
                         const std::function<void(SimulatedWorker*)>& verb,
                         std::function<void(const Outcome&)> done) {
  outcome_ = {.well = true};
  done_ = std::move(done);
  counts_ = counts;
  waiting_ = members_.size();
  for (Member& member : members_) {
    member.calling = true;
    member.spans.clear();
    if (counts) member.clock.Begin(cause, cluster_->now());
  }
  for (Member& member : members_) {
    SimulatedWorker* const worker = member.worker;
    const size_t refused = worker->refusals.size();
    verb(worker);
    if (member.calling && worker->refusals.size() > refused) End(&member, /*well=*/false);
  }
}

void ScenarioGroup::HandleDone(Member* member, const OperationDone& done) {
  if (!member->calling) return;
  if (done.status.ok()) {
    outcome_.available = outcome_.available && done.outcome != UpdateOutcome::kNotAvailable;
    outcome_.moved = done.outcome == UpdateOutcome::kMoved;
    outcome_.seeding = done.not_available == NotAvailableReason::kSeeding;
    outcome_.label = std::string(done.version.label.text());
  }
  End(member, done.status.ok());
}

void ScenarioGroup::End(Member* member, bool well) {
  member->calling = false;
  outcome_.well = outcome_.well && well;
  if (counts_ && well && waits_for_members_) {
    member->clock.Switch(StallCause::kMembers, cluster_->now());
  } else if (counts_) {
    member->clock.End(cluster_->now());
  }
  if (--waiting_ > 0) return;
  ending_ = true;
  cluster_->Post(absl::ZeroDuration(), [this] {
    ending_ = false;
    std::exchange(done_, nullptr)(outcome_);
  });
}

void ScenarioGroup::BeginStall(StallCause cause) {
  for (Member& member : members_) member.clock.Begin(cause, cluster_->now());
}

void ScenarioGroup::EndStall() {
  waits_for_members_ = false;
  for (Member& member : members_) member.clock.End(cluster_->now());
}

void ScenarioGroup::HandleAccepted(Member* member, const std::string& source) {
  const uint64_t bytes = cluster_->wire_bytes_per_segment();
  member->result.bytes_from[source] += bytes;
  const Distance distance = DistanceBetween(member->worker->location(), places_->at(source));
  bytes_over_[static_cast<size_t>(distance)] += bytes;
  const absl::Duration now = SinceStart(cluster_->now());
  const auto [span, first] = member->spans.emplace(source, member->result.spans.size());
  if (first) {
    member->result.spans.push_back({source, SinceStart(member->waits_for_bytes_since), now});
  }
  member->result.spans[span->second].ended = now;
}

// ---- events

void ScenarioGroup::OnRanks(std::optional<uint32_t> rank, const std::function<void(Member*)>& act) {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].worker != nullptr && (!rank.has_value() || *rank == i)) act(&members_[i]);
  }
}

void ScenarioGroup::Leave(std::optional<uint32_t> rank) {
  OnRanks(rank, [](Member* member) {
    if (member->worker->alive()) {
      member->worker->RunOrHold([worker = member->worker] { worker->Leave(); });
    }
  });
}

void ScenarioGroup::Preempt(std::optional<uint32_t> rank, absl::Duration notice) {
  OnRanks(rank, [notice](Member* member) {
    if (member->worker->alive()) {
      member->worker->RunOrHold([worker = member->worker, notice] { worker->Preempt(notice); });
    }
  });
}

void ScenarioGroup::Kill(std::optional<uint32_t> rank) {
  OnRanks(rank, [this](Member* member) {
    member->worker->Kill();
    if (member->calling) End(member, /*well=*/false);
  });
}

void ScenarioGroup::Crash(std::optional<uint32_t> rank) {
  OnRanks(rank, [this](Member* member) {
    member->worker->Crash();
    if (member->calling) End(member, /*well=*/false);
  });
}

void ScenarioGroup::Stop(std::optional<uint32_t> rank, absl::Duration lasting) {
  OnRanks(rank, [this, lasting](Member* member) {
    member->worker->Stop();
    cluster_->Post(lasting, [worker = member->worker] { worker->Continue(); });
  });
}

// ---- the account

void ScenarioGroup::AppendResults(ScenarioResult* result) const {
  for (const Member& member : members_) {
    RankResult rank = member.result;
    StallClock clock = member.clock;
    clock.End(cluster_->now());
    rank.stall = clock.times();
    if (member.worker != nullptr) {
      rank.bytes_sent += member.worker->segments_sent() * cluster_->wire_bytes_per_segment();
    }
    result->ranks.push_back(std::move(rank));
  }
  for (size_t i = 0; i < kDistances; ++i) result->bytes_over[i] += bytes_over_[i];
  if (calling()) ++result->calls_open;
}

}  // namespace th
