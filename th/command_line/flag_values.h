// The rule for the value of every flag of TensorHub's binaries, before the flag's own checks.
#ifndef TH_COMMAND_LINE_FLAG_VALUES_H_
#define TH_COMMAND_LINE_FLAG_VALUES_H_

#include "CLI/CLI.hpp"

namespace th {

// For all options of `app` and of its subcommands, which must be there already: an empty value is
// a usage error, as it is a slip of a script; integers are decimal, 010 is 10; a value, unless
// it is true, is a usage error of a flag that takes none (--hold=3). Not thread-safe.
void CheckEveryValue(CLI::App& app);

}  // namespace th

#endif  // TH_COMMAND_LINE_FLAG_VALUES_H_
