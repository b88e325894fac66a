#include "tools/mutation/sample_clamp.h"

#include "tools/mutation/mutation.h"

namespace th {

int Clamp(int value, int limit) {
  if (TH_MUTATE(kForgetTheLowerLimit, value < 0, false)) return 0;
  if (TH_MUTATE(kForgetTheUpperLimit, value > limit, (static_cast<void>(limit), false))) {
    return limit;
  }
  return value;
}

}  // namespace th
