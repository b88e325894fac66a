#include "th/registry_state/turn.h"

#include "absl/strings/str_cat.h"

namespace th {

std::string RegistryEvent::LogLine() const {
  if (kind == EventKind::kNone) return text;
  return absl::StrCat(key.ToString(), " ", who, who.empty() ? "" : ": ",
                      std::string(EventKindName(kind)), text.empty() ? "" : ": ", text,
                      EventSuffix(id));
}

namespace registry {

void Send(Turn& turn, const Worker& worker, ServerMessage message) {
  if (worker.connection.has_value()) SendToConnection(turn, *worker.connection, std::move(message));
}

void SendToConnection(Turn& turn, ConnectionId connection, ServerMessage message) {
  turn.effects.messages.push_back({connection, std::move(message)});
}

void Log(Turn& turn, std::string text) { turn.effects.events.push_back({std::move(text)}); }

void Note(Turn& turn, const ModelKey& key, NotedEvent event, std::string text) {
  const EventId id = event.id.empty() ? MintEvent(turn.state) : event.id;
  turn.effects.events.push_back({std::move(text), event.kind, id, key, std::move(event.who)});
}

EventId MintEvent(RegistryState& state) { return EventId::Of(state.epoch, ++state.last_event); }

void Persist(Turn& turn, const Model& model) {
  turn.state.durable.models[model.key] = model.durable;
  turn.durable_changed = true;
  if (!model.host_copies.empty()) turn.to_review.insert(model.key);
}

}  // namespace registry
}  // namespace th
