#ifndef TESTING_UNDER_SANITIZER_H_
#define TESTING_UNDER_SANITIZER_H_

namespace th::testing {

// True when the sources are compiled with a sanitizer, which makes them about ten times as slow.
bool UnderSanitizer();

}  // namespace th::testing

#endif  // TESTING_UNDER_SANITIZER_H_
