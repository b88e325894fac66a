// The state file's text: one line with format and checksum, then JSON that a person can read.
//
//   tensorhub-state 2 <SHA-256 of everything after this line>
//   {"cluster": 77, "cluster_key": "…", "epoch": 3, "models": [ … ], "epoch_ids": [5, 9]}
#ifndef TH_COORDINATION_STATE_ENCODING_H_
#define TH_COORDINATION_STATE_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/registry_state/registry_types.h"

namespace th {

inline constexpr uint32_t kStateFormat = 2;
// Refused beyond this: some 100,000 models with a dozen pins each.
inline constexpr size_t kMaxStateBytes = size_t{256} << 20;

struct StoredState {
  Epoch epoch;
  StateIdentity identity;  // without of_this_process
  DurableState durable;
  friend bool operator==(const StoredState&, const StoredState&) = default;
};

std::string EncodeState(const StoredState& state);

// DATA_LOSS when the text is damaged (the checksum or a field is wrong), UNIMPLEMENTED when a newer
// server wrote it. Never a state that nobody wrote.
absl::StatusOr<StoredState> DecodeState(absl::string_view text);

}  // namespace th

#endif  // TH_COORDINATION_STATE_ENCODING_H_
