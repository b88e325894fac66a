#include "th/wire/events.h"

#include <utility>

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {
namespace {

pb::RecentEvent EventToProto(const RecentEvent& event) {
  pb::RecentEvent out;
  out.set_number(event.number);
  out.set_id(event.id.value);
  out.set_kind(static_cast<uint32_t>(event.kind));
  *out.mutable_age() = ToProto(event.age);
  out.set_at_unix_us(absl::ToUnixMicros(event.at));
  if (event.key != ModelKey()) *out.mutable_key() = ToProto(event.key);
  out.set_who(CleanText(event.who, kMaxProseBytesOnWire));
  out.set_what(CleanText(event.what, kMaxProseBytesOnWire));
  return out;
}

// A kind that this build does not know is kept as the number that it is, within its type.
EventKind KindFromProto(uint32_t kind) {
  return static_cast<EventKind>(kind <= 0xff ? kind : 0xff);
}

absl::StatusOr<RecentEvent> EventFromProto(const pb::RecentEvent& in) {
  FieldReader reader;
  RecentEvent out{.number = in.number(),
                  .id = EventId(in.id()),
                  .kind = KindFromProto(in.kind()),
                  .at = absl::FromUnixMicros(in.at_unix_us())};
  reader.Duration("age", in.has_age(), in.age(), out.age);
  if (in.has_key()) reader.Nested("key", FromProto(in.key()), out.key);
  reader.Prose(in.who(), out.who);
  reader.Prose(in.what(), out.what);
  return reader.Finish(std::move(out));
}

}  // namespace

pb::EventsRequest ToProto(const EventsQuery& query) {
  pb::EventsRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  out.set_run(query.run);
  out.set_model(query.model);
  out.set_id(query.id.value);
  out.set_after(query.after);
  out.set_limit(query.limit);
  return out;
}

absl::StatusOr<EventsQuery> FromProto(const pb::EventsRequest& in) {
  FieldReader reader;
  EventsQuery out{.id = EventId(in.id()), .after = in.after(), .limit = in.limit()};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.OptionalName("run", in.run(), out.run);
  reader.OptionalName("model", in.model(), out.model);
  return reader.Finish(std::move(out));
}

pb::EventsResponse ToProto(const RecentEvents& events) {
  pb::EventsResponse out;
  out.set_epoch(events.epoch.value);
  out.set_last(events.last);
  out.set_lost(events.lost);
  for (const RecentEvent& event : events.events) *out.add_events() = EventToProto(event);
  return out;
}

absl::StatusOr<RecentEvents> FromProto(const pb::EventsResponse& in) {
  FieldReader reader;
  RecentEvents out{.epoch = Epoch(in.epoch()), .last = in.last(), .lost = in.lost()};
  reader.Each("events", in.events(), kMaxEventsOfAnswer, out.events, EventFromProto);
  return reader.Finish(std::move(out));
}

}  // namespace th
