#include "testing/under_sanitizer.h"

namespace th::testing {

bool UnderSanitizer() {
#ifdef TH_UNDER_SANITIZER
  return true;
#else
  return false;
#endif
}

}  // namespace th::testing
