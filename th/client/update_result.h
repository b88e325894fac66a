// What an update came to, as its caller reads it.
#ifndef TH_CLIENT_UPDATE_RESULT_H_
#define TH_CLIENT_UPDATE_RESULT_H_

#include "absl/status/statusor.h"
#include "th/client/call.h"
#include "th/client/client.h"

namespace th {

// From a call that has finished. The error is the session's, as it composed it.
absl::StatusOr<UpdateResult> ComposeUpdateResult(const Call& call);

}  // namespace th

#endif  // TH_CLIENT_UPDATE_RESULT_H_
