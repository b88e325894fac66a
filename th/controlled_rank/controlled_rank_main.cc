// A process of the demo, the benchmarks and the tests; people have no use for it.
#include <csignal>

#include "glog/logging.h"
#include "th/controlled_rank/controlled_rank.h"

int main(int, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is a write that fails
  signal(SIGXFSZ, SIG_IGN);  // and so is a file beyond the limit of the process
  th::RunControlledRank();
  return 0;
}
