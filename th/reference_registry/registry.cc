#include "th/reference_registry/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/commands.h"
#include "th/reference_registry/dispatch.h"
#include "th/reference_registry/listing.h"
#include "th/reference_registry/operations.h"
#include "th/reference_registry/recovery.h"
#include "th/reference_registry/roll_back.h"
#include "th/reference_registry/shard_lookup.h"
#include "th/registry_state/invariants.h"
#include "th/registry_state/server_pause.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th {

using registry::RegistryState;
using registry::Turn;

struct Registry::Impl {
  RegistryState state;

  // One event: what it changes, what that leaves over, what it has to say.
  template <typename Event>
  RegistryEffects Run(absl::Time now, const Event& event) {
    RegistryEffects effects;
    Turn turn{.state = state, .effects = effects, .now = now};
    event(turn);
    registry::FinishTurn(turn);
    if (turn.durable_changed) effects.durable = state.durable;
    return effects;
  }
};

Registry::Registry(RegistryStart start, RegistryLimits limits) : impl_(std::make_unique<Impl>()) {
  impl_->state.limits = limits;
  registry::BeginEpoch(impl_->state, start);
}

Registry::~Registry() = default;

RegistryEffects Registry::HandleMessage(ConnectionId connection, const WorkerMessage& message,
                                        absl::Time now) {
  return impl_->Run(now, [&](Turn& turn) { registry::DispatchMessage(turn, connection, message); });
}

RegistryEffects Registry::HandleDisconnect(ConnectionId connection, absl::Time now) {
  return impl_->Run(now, [&](Turn& turn) { registry::DispatchDisconnect(turn, connection); });
}

RegistryEffects Registry::HandleTick(absl::Time now) {
  return impl_->Run(now, [](Turn& turn) { registry::DispatchDeadlines(turn); });
}

void Registry::HandlePause(absl::Duration pause, absl::Time now) {
  registry::MovePastPause(impl_->state, pause, now);
}

absl::Time Registry::NextDeadline() const {
  const RegistryState& state = impl_->state;
  absl::Time next = absl::InfiniteFuture();
  if (!state.deadlines.empty()) next = state.deadlines.begin()->at;
  if (!state.pin_expiries.empty()) next = std::min(next, state.pin_expiries.begin()->first);
  return next;
}

Registry::CommandResult Registry::HandleCommand(const ModelKey& key, const RunCommand& command,
                                                const std::string& asked_by, absl::Time now) {
  CommandResult result;
  result.effects = impl_->Run(now, [&](Turn& turn) {
    result.finished = registry::RunOnce(turn, key, command, /*caller=*/nullptr, asked_by);
  });
  return result;
}

Catalog Registry::List(const std::string& run, const std::string& model, absl::Time now) const {
  return registry::ListCatalog(impl_->state, run, model, now);
}

absl::StatusOr<VersionInfo> Registry::Resolve(const ModelKey& key,
                                              const VersionSelector& selector) const {
  const auto version = registry::FindPublished(impl_->state, key, selector);
  if (!version.ok()) return version.status();
  return (*version)->info;
}

absl::StatusOr<FoundShard> Registry::FindShard(const ShardQuery& query) const {
  return registry::FindShard(impl_->state, query);
}

absl::StatusOr<FoundForm> Registry::FindForm(const FormQuery& query) const {
  return registry::FindForm(impl_->state, query);
}

bool Registry::HasGroup(const ModelKey& key, const std::string& group) const {
  return registry::HasGroup(impl_->state, key, group);
}

absl::StatusOr<std::shared_ptr<const std::string>> Registry::EncodedLayout(
    const Digest& digest) const {
  const auto found = impl_->state.layouts.find(digest);
  if (found == impl_->state.layouts.end() || !found->second.layout.has_value()) {
    return absl::NotFoundError(absl::StrCat("layout ", digest.ShortHex(), " is unknown"));
  }
  registry::LayoutRecord& record = found->second;
  if (record.encoded == nullptr) {
    record.encoded = std::make_shared<const std::string>(record.layout->Encode());
  }
  return record.encoded;
}

std::vector<ModelFigures> Registry::Figures() const { return registry::ListFigures(impl_->state); }

absl::string_view Registry::ReplicaPhaseName(const ModelKey& key, const std::string& group,
                                             const std::string& buffer_name) const {
  return registry::ReplicaPhaseName(impl_->state, key, group, buffer_name);
}

const DurableState& Registry::durable() const { return impl_->state.durable; }

const RegistryCounters& Registry::counters() const { return impl_->state.counters; }

size_t Registry::worker_count() const { return impl_->state.workers.size(); }

absl::Status Registry::CheckInvariants() const {
  return registry::CheckStateInvariants(impl_->state);
}

}  // namespace th
