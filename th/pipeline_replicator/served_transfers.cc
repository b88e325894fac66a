#include "th/pipeline_replicator/served_transfers.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/mutation/mutation.h"

namespace th {

// ---- holders

void ServedTransfers::AddHolder(WorkerId holder) { holders_[holder].removed = false; }

void ServedTransfers::RemoveHolder(WorkerId holder) {
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return;
  found->second.removed = true;
  for (auto& [id, transfer] : transfers_) {
    if (transfer.holder == holder) EndConnections(transfer, ServingEnd::kNow);
  }
}

bool ServedTransfers::IsQuiet(WorkerId holder) const {
  const auto found = holders_.find(holder);
  return found == holders_.end() || found->second.served == 0;
}

void ServedTransfers::ForgetHolder(WorkerId holder) {
  holders_.erase(holder);
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const auto next = std::next(it);
    if (it->second.holder == holder) Erase(it);
    it = next;
  }
}

bool ServedTransfers::Serves(WorkerId holder) const {
  const auto found = holders_.find(holder);
  return found != holders_.end() && !found->second.removed;
}

// ---- connections

void ServedTransfers::HandleOpened(ServingConnection connection, TransferId transfer,
                                   Opening opening) {
  if (!opening.joins) return Ask(connection, transfer, std::move(opening));
  absl::Status joined = Join(connection, opening);
  if (!joined.ok()) Refuse(connection, std::move(joined));
}

void ServedTransfers::Ask(ServingConnection connection, TransferId id, Opening opening) {
  const WorkerId holder = opening.capability.claims.source.worker;
  if (!Serves(holder)) {
    return Refuse(connection,
                  absl::NotFoundError(absl::StrCat("no worker ", holder.value, " serves here")));
  }
  Transfer& transfer = transfers_[id];
  transfer.holder = holder;
  transfer.opening = std::move(opening);
  transfer.connections.insert(connection);
  of_connection_[connection] = id;
  outputs_.push_back(AskHolder{holder, id});
}

absl::Status ServedTransfers::Join(ServingConnection connection, const Opening& opening) {
  const auto known = by_nonce_.find(opening.nonce);
  const auto found = known == by_nonce_.end() ? transfers_.end() : transfers_.find(known->second);
  if (found == transfers_.end() || TH_MUTATE(kJoinACutTransfer, found->second.cut, false) ||
      found->second.opening.capability != opening.capability) {
    return absl::PermissionDeniedError("no admitted pull to join");
  }
  if (found->second.connections.size() >= kMaxConnectionsPerTransfer) {
    return absl::ResourceExhaustedError("too many connections for one pull");
  }
  found->second.connections.insert(connection);
  of_connection_[connection] = found->first;
  outputs_.push_back(AdmitConnection{connection, found->first});
  return absl::OkStatus();
}

void ServedTransfers::HandleClosed(ServingConnection connection) {
  const auto of = of_connection_.find(connection);
  if (of == of_connection_.end()) return;
  const auto found = transfers_.find(of->second);
  of_connection_.erase(of);
  Transfer& transfer = found->second;
  transfer.connections.erase(connection);
  if (!transfer.served) return;  // the holder's answer is awaited
  if (TH_MUTATE(kReleaseWithAnyConnection, !transfer.connections.empty(), false)) return;
  outputs_.push_back(ReleaseTransfer{transfer.holder, found->first});
  --holders_[transfer.holder].served;
  Erase(found);
}

// ---- the holder's owner

absl::Status ServedTransfers::Check(const Transfer& transfer, const Decision& decision) {
  if (!decision.status.ok()) return decision.status;
  if (!decision.layout.has_value()) return absl::InternalError("admitted without a buffer");
  if (*decision.layout == transfer.opening.layout) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the layouts differ: this buffer holds ", decision.layout->ShortHex(),
                   ", the reader's is ", transfer.opening.layout.ShortHex()));
}

void ServedTransfers::HandleDecided(TransferId id, Decision decision) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end() || found->second.served) return;
  Transfer& transfer = found->second;
  absl::Status decided = Check(transfer, decision);
  const bool serves = Serves(transfer.holder);
  const bool wanted =
      TH_MUTATE(kBeginWhatWasCut, serves && !transfer.cut, true) && !transfer.connections.empty();
  if (decided.ok() && wanted) return Begin(id, transfer);
  if (decision.status.ok() && serves) outputs_.push_back(ReleaseTransfer{transfer.holder, id});
  // A reader that was cut or has left hears no refusal.
  if (!decided.ok() && wanted) Refuse(*transfer.connections.begin(), std::move(decided));
  Erase(found);
}

void ServedTransfers::Begin(TransferId id, Transfer& transfer) {
  transfer.served = true;
  ++holders_[transfer.holder].served;
  ++served_;
  by_nonce_[transfer.opening.nonce] = id;
  outputs_.push_back(AdmitConnection{*transfer.connections.begin(), id});
}

void ServedTransfers::End(TransferId transfer, ServingEnd end) {
  const auto found = transfers_.find(transfer);
  if (found != transfers_.end()) EndConnections(found->second, end);
}

void ServedTransfers::EndConnections(Transfer& transfer, ServingEnd end) {
  transfer.cut = true;
  for (const ServingConnection connection : transfer.connections) {
    outputs_.push_back(EndConnection{connection, end});
  }
}

// ---- what to do

std::optional<ServedTransfersOutput> ServedTransfers::PollOutput() {
  if (outputs_.empty()) return std::nullopt;
  ServedTransfersOutput output = std::move(outputs_.front());
  outputs_.pop_front();
  return output;
}

void ServedTransfers::Refuse(ServingConnection connection, absl::Status why) {
  ++refused_;
  outputs_.push_back(RefuseConnection{connection, std::move(why)});
}

void ServedTransfers::Erase(Transfers::iterator transfer) {
  const auto nonce = by_nonce_.find(transfer->second.opening.nonce);
  if (nonce != by_nonce_.end() && nonce->second == transfer->first) by_nonce_.erase(nonce);
  for (const ServingConnection connection : transfer->second.connections) {
    of_connection_.erase(connection);
  }
  transfers_.erase(transfer);
}

const ServedTransfers::Opening* ServedTransfers::FindOpening(TransferId transfer) const {
  const auto found = transfers_.find(transfer);
  return found == transfers_.end() ? nullptr : &found->second.opening;
}

}  // namespace th
