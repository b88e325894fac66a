#ifndef TESTING_UNDER_SANITIZER_H_
#define TESTING_UNDER_SANITIZER_H_

namespace th::testing {

// Whether the sources are compiled with a sanitizer, which makes them about ten times as slow.
// A function, not the macro TH_UNDER_SANITIZER: a test's own object may be that of the ordinary
// build (see .bazelrc), where the macro is not defined.
bool UnderSanitizer();

}  // namespace th::testing

#endif  // TESTING_UNDER_SANITIZER_H_
