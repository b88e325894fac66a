// Byte counts, rates, durations and key=value pairs as people write them on a command line.
//
//   TH_ASSIGN_OR_RETURN(const uint64_t bytes, ParseByteSize("1.5GiB"));
//   TH_ASSIGN_OR_RETURN(const uint64_t bytes_per_second, ParseRate("1gbit"));
//   TH_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeSpan("1h30m"));
//
// Each needs its unit: a bare number other than 0 would be taken for gigabytes or minutes by one
// reader, for bytes or seconds by another.
//
// Thread-safety: pure functions.
#ifndef TH_COMMAND_LINE_QUANTITY_H_
#define TH_COMMAND_LINE_QUANTITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/weights/version.h"

namespace th {

// A number, perhaps with a fraction, and a unit in any case: B; KiB MiB GiB TiB (powers of 1024, as
// are the bare K M G T); KB MB GB TB (powers of 1000); or 0. A fraction of a byte is dropped.
// INVALID_ARGUMENT saying what is accepted.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

// Bytes a second: a byte size with or without "/s", or bits ("800kbit", "1gbit", "2.5Gbit/s";
// powers of 1000). "none" is 0, which means no cap; a rate of 0 in figures is refused.
absl::StatusOr<uint64_t> ParseRate(absl::string_view text);

// "500ms", "1.5h", "1h30m" (ns us ms s m h), or 0. INVALID_ARGUMENT: a bare number, one below 0, no
// end.
absl::StatusOr<absl::Duration> ParseTimeSpan(absl::string_view text);

// "k=v" pairs, each key once. INVALID_ARGUMENT naming the pair; also when ValidateAttributes
// refuses.
absl::StatusOr<Attributes> ParseAttributes(const std::vector<std::string>& pairs);

// "0 B", "512 B", "45.3 MB", "4.29 GB": three significant digits, powers of 1000.
std::string FormatBytes(uint64_t bytes);
// "15.0 MB/s"; "no cap" for 0.
std::string FormatRate(uint64_t bytes_per_second);

}  // namespace th

#endif  // TH_COMMAND_LINE_QUANTITY_H_
