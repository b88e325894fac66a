#ifndef TOOLS_MUTATION_SAMPLE_CLAMP_H_
#define TOOLS_MUTATION_SAMPLE_CLAMP_H_

namespace th {

// `value`, but at least 0 and at most `limit`.
int Clamp(int value, int limit);

}  // namespace th

#endif  // TOOLS_MUTATION_SAMPLE_CLAMP_H_
