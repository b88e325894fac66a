#include "th/command_line/process_setup.h"

#include <csignal>

#include "glog/logging.h"

namespace th {

void SetUpProcess(const char* program) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(program);
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is a write that fails
  signal(SIGXFSZ, SIG_IGN);  // and so is a file beyond the limit of the process
}

}  // namespace th
