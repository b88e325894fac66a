// A process that may not read other processes' memory, as in a container with a strict filter: what
// it reads comes over TCP, with the reason; in strict mode not at all.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::Message;
using ::th::testing::Rank;
using ::th::testing::TestServer;
using ::th::testing::Worker;

// From now on process_vm_readv fails with EPERM in this thread and in those that it starts.
bool ForbidReadingMemory() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(ForbiddenMemoryTest, AnUpdateComesOverTcpWithTheReason) {
  TestServer server;
  Worker trainer = Worker::Make(Rank(server, "trainer"));
  Worker rollout = Worker::Make(Rank(server, "rollout"));
  trainer.shard.FillWith(7);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(rollout.shard.HasContentOf(7));
  ASSERT_EQ(result.sources.size(), 1);
  EXPECT_EQ(result.sources[0].transport, "tcp");
  EXPECT_THAT(result.sources[0].passed_over,
              AllOf(StartsWith("same_host: "), HasSubstr("EPERM"), HasSubstr("seccomp")));
  EXPECT_EQ(result.reroutes, 0);
}

TEST(ForbiddenMemoryTest, InStrictModeTheUpdateFailsWithTheReason) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.strict_transport = true;
  Worker trainer = Worker::Make(options);
  options.group = "rollout";
  Worker rollout = Worker::Make(options);
  rollout.shard.FillWith(3);
  ASSERT_OK(trainer.PublishAndWait(1));
  const auto updated = rollout.buffer.Update(Latest());
  EXPECT_THAT(Message(updated.status()), AllOf(HasSubstr("trainer/0"), HasSubstr("EPERM")));
  EXPECT_TRUE(rollout.shard.HasContentOf(3));  // nothing was written
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!th::ForbidReadingMemory()) {
    std::perror("the system lets no process filter its own calls (seccomp)");
    return 1;
  }
  return RUN_ALL_TESTS();
}
