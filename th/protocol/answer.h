// The check whether a result can answer what a rank has asked for. The server looks before it hands
// a saved result to a rank that asks late, and each rank looks again at what it is told: operations
// are matched by their numbers alone, and a number that has come to mean something else would
// otherwise give one version's name to another one's bytes.
#ifndef TH_PROTOCOL_ANSWER_H_
#define TH_PROTOCOL_ANSWER_H_

#include <string>

#include "th/protocol/messages.h"
#include "th/weights/version.h"

namespace th {

// Why `version` cannot be what `asked` has come to, as the end of a sentence about the answer
// ("names step-1 (#1.1), and 'step-2' was asked for"). Empty: it can. A publish is answered by its
// own label or the version that it derives from, an update by a version that its selector may name.
std::string WhyNoAnswer(const StartOperation& asked, const VersionInfo& version);

}  // namespace th

#endif  // TH_PROTOCOL_ANSWER_H_
