// A process of the demo, the benchmarks and the tests; people have no use for it.
#include "th/controlled_rank/controlled_rank.h"

int main(int argc, char** argv) { return th::RunControlledRank(argc, argv); }
