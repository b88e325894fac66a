// CLI11's parser by name alone, for headers whose functions add flags to one: the library's own
// header takes seconds to compile.
#ifndef TH_COMMAND_LINE_CLI_APP_H_
#define TH_COMMAND_LINE_CLI_APP_H_

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}  // namespace CLI

#endif  // TH_COMMAND_LINE_CLI_APP_H_
