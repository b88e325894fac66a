// The form of a fuzz target.
//
//   #include "testing/fuzz/fuzz_target.h"
//
//   extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
//     const absl::string_view input = th::testing::AsText(data, size);
//     const absl::StatusOr<Frame> frame = Frame::Decode(input);
//     if (frame.ok()) FUZZ_CHECK(frame->Encode() == input);
//     return 0;
//   }
//
// The signature is libFuzzer's, so a target links with it as it is; fuzz_test() in fuzz_test.bzl
// makes an ordinary test of it that replays the corpus and seeded mutations of it.
#ifndef TESTING_FUZZ_FUZZ_TARGET_H_
#define TESTING_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"

// Bears any `size` bytes. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace th::testing {

inline absl::string_view AsText(const uint8_t* data, size_t size) {
  return absl::string_view(reinterpret_cast<const char*>(data), size);
}

}  // namespace th::testing

// Fuzzers find failures by their aborts.
#define FUZZ_CHECK(condition)                                                                 \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::fprintf(stderr, "%s:%d: FUZZ_CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)

#endif  // TESTING_FUZZ_FUZZ_TARGET_H_
