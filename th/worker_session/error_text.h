// Errors as the caller reads them: a code word first, then who, what, what was tried, in which
// state the buffer is left, and which operation it was. One line; the code word is stable, the rest
// is for people.
//
//   UPDATE_STALLED run=r1 model=qwen3 version=step-57 rank=rollout-3/1: 3.1 of 8.0 GiB received;
//   source rollout-1/1 (tcp 10.0.0.7:4711) silent for 1.0 s, 2 others tried (...); buffer
//   undefined, do not serve; operation 12 event=7-1234
#ifndef TH_WORKER_SESSION_ERROR_TEXT_H_
#define TH_WORKER_SESSION_ERROR_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"

namespace th {

enum class ErrorCode : uint8_t {
  kUpdateStalled,   // the sources went silent, and no other was left in time
  kUpdateDeadline,  // the time was up
  kUpdateFailed,    // any other end of an update
  kUpdateRefused,   // not begun: the buffer's state or the request forbids it
  kPublishDeadline,
  kPublishFailed,
  kPublishRefused,
  kUnpublishFailed,
  kUnpublishRefused,
  kResetRefused,
  kPublicationLost,  // an earlier publication could not stay
  kGroupChanged,     // a rank of the group was replaced, or lags
  kJoinRefused,
  kServerUnreachable,
  kMembershipEnded,  // replaced, or its lease has ended
  kSessionEnded,     // it left
  kCommandFailed,
  kCommandDeadline,
};
absl::string_view ErrorCodeName(ErrorCode code);

// In one text at most this many other sources are named and this much of a cause is kept.
inline constexpr size_t kMaxSourcesNamed = 3;
inline constexpr size_t kMaxCauseBytes = 1024;

absl::string_view SourceFailureName(SourceFailure failure);

struct FailedSource {
  RankName name;
  std::string transport;
  std::string address;
  SourceFailure failure = SourceFailure::kClosed;
  std::string detail;  // "silent for 1.0 s"; empty: the failure's name
};

struct ErrorText {
  ErrorCode code = ErrorCode::kUpdateFailed;
  ModelKey key;
  std::optional<RankName> rank;
  std::string version;  // empty: not known yet
  struct Received {
    uint64_t held_bytes = 0;
    uint64_t total_bytes = 0;
  };
  std::optional<Received> received;
  std::vector<FailedSource> failed_sources;  // oldest first; the last is told in full
  std::string cause;
  std::string aftermath;  // "buffer undefined, do not serve"
  std::optional<OperationNumber> operation;
  EventId event;  // empty: none is known
};

// The line. Control characters that came from elsewhere are replaced.
std::string Compose(const ErrorText& text);
// The same as a status of `code` (kOk is taken as kInternal), with its fields (FieldsOf).
absl::Status ComposeStatus(absl::StatusCode code, const ErrorText& text);

}  // namespace th

#endif  // TH_WORKER_SESSION_ERROR_TEXT_H_
