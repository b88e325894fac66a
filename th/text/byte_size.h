// Byte counts in messages about limits and sizes that a user has given, as flags take them.
#ifndef TH_TEXT_BYTE_SIZE_H_
#define TH_TEXT_BYTE_SIZE_H_

#include <cstdint>
#include <string>

namespace th {

// "1GiB", "1.5GiB", "1000B": the largest unit (powers of 1024) that leaves at least 1, with one
// decimal where it does not come out even. Pure.
std::string ByteSizeText(uint64_t bytes);

// The same without a fraction, in the largest unit of which it is a multiple ("1536MiB",
// "400072B"): for a value that the user is told to give.
std::string ExactByteSizeText(uint64_t bytes);

}  // namespace th

#endif  // TH_TEXT_BYTE_SIZE_H_
