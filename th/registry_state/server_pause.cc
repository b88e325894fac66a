#include "th/registry_state/server_pause.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"

namespace th::registry {
namespace {

void ShiftFill(Fill& fill, absl::Duration pause) {
  fill.grace_ends += pause;
  fill.retry_at += pause;
  fill.throughput.recheck_at += pause;
  fill.deferred_until += pause;
  for (Exclusion& exclusion : fill.exclusions) exclusion.retry_at += pause;
}

void ShiftWorker(Worker& worker, absl::Duration pause, absl::Time now) {
  worker.last_heard = std::min(worker.last_heard + pause, now);
  worker.lease_at += pause;
  for (auto& [id, buffer] : worker.buffers) {
    if (buffer.fill != nullptr) ShiftFill(*buffer.fill, pause);
  }
}

}  // namespace

void MovePastPause(RegistryState& state, absl::Duration pause, absl::Time now) {
  if (pause <= absl::ZeroDuration()) return;
  for (auto& [id, worker] : state.workers) ShiftWorker(*worker, pause, now);
  for (auto& [id, replica] : state.replicas) {
    for (auto& [number, transaction] : replica->pending) {
      transaction.deadline += pause;
      transaction.complete_by += pause;
    }
    replica->copy_awaited_until += pause;
    if (replica->reservation.has_value()) replica->reservation->until += pause;
  }
  for (auto& [digest, record] : state.layouts) record.asked_at += pause;
  state.forgets_at += pause;
  absl::btree_set<Deadline> moved;
  for (Deadline deadline : state.deadlines) {
    deadline.at += pause;
    moved.insert(moved.end(), deadline);
  }
  state.deadlines = std::move(moved);
}

}  // namespace th::registry
