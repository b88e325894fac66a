#include "th/worker_session/server_silence.h"

#include <algorithm>

#include "tools/mutation/mutation.h"

namespace th::session {

std::optional<absl::Time> SilentSince(const State& state) {
  if (!state.joined()) return std::nullopt;
  std::optional<absl::Time> waits_since;
  for (const auto& [id, buffer] : state.buffers) {
    for (const Operation& operation : buffer.operations) {
      const bool waits = operation.kind() == OperationKind::kUnpublish &&
                         !operation.verdict.has_value() && !WaitsForCopy(operation);
      if (!waits) continue;
      waits_since = std::min(waits_since.value_or(operation.started), operation.started);
    }
  }
  if (!TH_MUTATE(kTrustASilentServer, waits_since.has_value(), false)) return std::nullopt;
  return std::max(*waits_since, state.link.heard_at);
}

absl::Time SilenceDeadline(const State& state) {
  const std::optional<absl::Time> silent_since = SilentSince(state);
  if (!silent_since.has_value()) return absl::InfiniteFuture();
  if (state.link.asked_at == absl::InfinitePast()) return *silent_since + kAskAfter;
  return state.link.asked_at + kAnswerTimeout;
}

void AskSilentServer(State& state, absl::Time now) {
  const bool asked = state.link.asked_at != absl::InfinitePast();
  if (asked || now < SilenceDeadline(state)) return;
  state.link.asked_at = now;
  state.Send(Heartbeat{.ask = true}, now);
}

bool IsServerSilent(const State& state, absl::Time now) {
  const bool asked = state.link.asked_at != absl::InfinitePast();
  return asked && now >= SilenceDeadline(state);
}

}  // namespace th::session
