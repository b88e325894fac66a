#include "th/reference_registry/turn.h"

namespace th::registry {

void Send(Turn& turn, const Worker& worker, ServerMessage message) {
  if (worker.connection.has_value()) SendToConnection(turn, *worker.connection, std::move(message));
}

void SendToConnection(Turn& turn, ConnectionId connection, ServerMessage message) {
  turn.effects.messages.push_back({connection, std::move(message)});
}

void Log(Turn& turn, std::string text) { turn.effects.events.push_back({std::move(text)}); }

void Persist(Turn& turn, const Model& model) {
  turn.state.durable.models[model.key] = model.durable;
  turn.durable_changed = true;
  if (!model.offloads.empty()) turn.to_review.insert(model.key);
}

}  // namespace th::registry
