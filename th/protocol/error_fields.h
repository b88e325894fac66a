// The fields that an error of TensorHub has besides its text, for programs: the code word, the rank
// that it is about and the operation's name. They travel in the status itself, as payloads.
//
//   const absl::Status status = weights.Update(th::Latest()).status();
//   const th::ErrorFields fields = th::FieldsOf(status);
//   if (fields.word == "UPDATE_STALLED") Alert(fields.rank, fields.event);
#ifndef TH_PROTOCOL_ERROR_FIELDS_H_
#define TH_PROTOCOL_ERROR_FIELDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace th {

// Empty: the error has none, as one that no session of this process has composed.
struct ErrorFields {
  std::string word;   // "UPDATE_STALLED"
  std::string rank;   // "rollout-3/1"
  std::string event;  // "7-1234", as in `th events`
  friend bool operator==(const ErrorFields&, const ErrorFields&) = default;
};

ErrorFields FieldsOf(const absl::Status& status);
// Sets the fields of a status that is not OK.
void SetFields(const ErrorFields& fields, absl::Status* status);
// The same error, its fields kept, in other words.
absl::Status Reworded(const absl::Status& status, absl::string_view text);

}  // namespace th

#endif  // TH_PROTOCOL_ERROR_FIELDS_H_
