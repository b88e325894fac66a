// The question for recent events and its answer, to and from protobuf. See wire.h for the rules.
#ifndef TH_WIRE_EVENTS_H_
#define TH_WIRE_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/event.h"
#include "th/protocol/messages.h"
#include "th/wire/values.h"

namespace th {

struct EventsQuery {
  ProtocolHello hello;
  std::string run;    // "": all
  std::string model;  // "": all
  EventId id;         // empty: all
  uint64_t after = 0;
  uint32_t limit = 0;  // 0 and what is beyond kMaxEventsOfAnswer: kMaxEventsOfAnswer
};

pb::EventsRequest ToProto(const EventsQuery& query);
absl::StatusOr<EventsQuery> FromProto(const pb::EventsRequest& in);

pb::EventsResponse ToProto(const RecentEvents& events);
absl::StatusOr<RecentEvents> FromProto(const pb::EventsResponse& in);

}  // namespace th

#endif  // TH_WIRE_EVENTS_H_
