// The check whether a result can answer what a rank has asked for. The server looks before it hands
// a saved result to a rank that asks late, and each rank looks again at what it is told: operations
// are matched by their numbers alone, and a number that has come to mean something else would
// otherwise give one version's name to another one's bytes.
#ifndef TH_PROTOCOL_ANSWER_H_
#define TH_PROTOCOL_ANSWER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/protocol/messages.h"
#include "th/weights/version.h"

namespace th {

// Why `version` cannot be what `asked` has come to, as the end of a sentence about the answer
// ("names step-1 (#1.1), and 'step-2' was asked for"). Empty: it can. A publish is answered by its
// own label or the version that it derives from, an update by a version that its selector may name.
std::string WhyNoAnswer(const StartOperation& asked, const VersionInfo& version);

// How a server says that an operation has ended and that it does not know any more how: ABORTED,
// in these words.
inline constexpr absl::string_view kForgotten = "is forgotten";
// True when the end of an operation says so: it contradicts no other error.
bool SaysForgotten(const absl::Status& end);

// How a server says that an operation ended well for its group, and that its result cannot answer
// what this rank has asked: ABORTED, in these words.
inline constexpr absl::string_view kNothingDoneForRank = "nothing was done for this rank";
// True for the end of an operation that says so. It tells nothing of what other ranks have heard.
bool SaysNothingDoneForRank(const absl::Status& end);

}  // namespace th

#endif  // TH_PROTOCOL_ANSWER_H_
