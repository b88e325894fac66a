// Messages between the domain (th/protocol) and protobuf (th/proto), in one place.
//
//   stub->Write(ToProto(WorkerMessage(Heartbeat{})));
//   TH_ASSIGN_OR_RETURN(std::optional<ServerMessage> message, FromProto(frame));
//   if (!message.has_value()) ++ignored;   // a newer peer said something that we do not know
//
// ToProto always makes something that FromProto accepts, when names and labels are valid: text is
// cut and made UTF-8, durations are clamped, progress is coarsened. FromProto trusts nothing: it
// returns a value within the limits of limits.h or INVALID_ARGUMENT with the path of the field at
// fault; UNIMPLEMENTED for fields that are reserved for later. Unknown fields are borne.
// Thread-safe: plain functions.
#ifndef TH_WIRE_WIRE_H_
#define TH_WIRE_WIRE_H_

#include "th/wire/catalog.h"             // IWYU pragma: export
#include "th/wire/controller_request.h"  // IWYU pragma: export
#include "th/wire/cost.h"                // IWYU pragma: export
#include "th/wire/events.h"              // IWYU pragma: export
#include "th/wire/limits.h"              // IWYU pragma: export
#include "th/wire/server_message.h"      // IWYU pragma: export
#include "th/wire/values.h"              // IWYU pragma: export
#include "th/wire/worker_message.h"      // IWYU pragma: export

#endif  // TH_WIRE_WIRE_H_
