#ifndef TOOLS_MUTATION_SAMPLE_PERCENT_H_
#define TOOLS_MUTATION_SAMPLE_PERCENT_H_

#include "tools/mutation/sample_clamp.h"

namespace th {

inline int Percent(int value) { return Clamp(value, 100); }

}  // namespace th

#endif  // TOOLS_MUTATION_SAMPLE_PERCENT_H_
