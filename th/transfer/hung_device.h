// The error about a GPU that does not end what it was given: a transfer gives it up, whoever owns
// the memory waits for it.
#ifndef TH_TRANSFER_HUNG_DEVICE_H_
#define TH_TRANSFER_HUNG_DEVICE_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

// `devices`: names of one or more. `what`: "copies into the buffer".
inline absl::Status HungDevice(absl::string_view devices, absl::string_view what,
                               absl::Duration waited) {
  return absl::DeadlineExceededError(absl::StrCat(
      "GPU ", devices, " has not ended within ", absl::FormatDuration(waited), " what it ", what,
      ": do not write or free the memory before it has, which Sleep, Rebind and the end of the "
      "buffer wait for; a GPU that stays so hangs, and its processes have to end"));
}

}  // namespace th

#endif  // TH_TRANSFER_HUNG_DEVICE_H_
