// The threads of the C interface: operations and receives that are cancelled and freed while they
// run. In this process, so that sanitizers see them; tensorhub_operations_test.py sees what each
// call does.
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/c_interface/tensorhub.h"
#include "th/client/test_cluster.h"

namespace th {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::th::testing::TestServer;

constexpr double kHour = 3600;  // of calls that only a cancel ends
constexpr double kPatience = 60;
constexpr size_t kBytes = 5'000'000;

bool IsReadable(int fd, int timeout_ms) {
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waited, 1, timeout_ms) == 1;
}

// One rank with one buffer.
class CWorker {
 public:
  CWorker(const TestServer& server, const char* group, uint32_t ranks = 1) {
    th_join_options join = TH_JOIN_OPTIONS_INIT;
    join.server = server.address().c_str();
    join.run = "run";
    join.model = "model";
    join.group = group;
    join.ranks = ranks;
    join.transports = "tcp";
    EXPECT_EQ(th_join(&join, &client), TH_OK) << th_last_error();
    const int64_t shape[] = {kBytes};
    th_tensor tensor{};
    tensor.struct_size = sizeof(th_tensor);
    tensor.name = "w";
    tensor.dtype = "U8";
    tensor.shape = shape;
    tensor.dimensions = 1;
    tensor.data = memory.data();
    EXPECT_EQ(th_register(client, &tensor, 1, nullptr, &buffer), TH_OK) << th_last_error();
  }
  ~CWorker() {
    th_buffer_free(buffer);
    th_client_free(client);
  }
  void Publish() {
    EXPECT_EQ(th_publish(buffer, "1", nullptr), TH_OK) << th_last_error();
    EXPECT_EQ(th_await_published(buffer, nullptr), TH_OK) << th_last_error();
  }

  std::vector<char> memory = std::vector<char>(kBytes, 7);
  th_client* client = nullptr;
  th_buffer* buffer = nullptr;
};

class CInterfaceTest : public ::testing::Test {
 protected:
  th_operation* StartUpdate(CWorker& worker) {
    th_update_options options = TH_UPDATE_OPTIONS_INIT;
    options.timeout = kHour;
    th_operation* operation = nullptr;
    EXPECT_EQ(th_update_start(worker.buffer, "1", &options, &operation), TH_OK) << th_last_error();
    return operation;
  }
  th_receive* Open(CWorker& worker, uint64_t limit_bytes = 4 << 20) {
    th_receive_options options = TH_RECEIVE_OPTIONS_INIT;
    options.group = "trainer";
    options.limit_bytes = limit_bytes;
    options.timeout = kHour;
    th_receive* receive = nullptr;
    EXPECT_EQ(th_receive_open(worker.client, "1", &options, &receive), TH_OK) << th_last_error();
    return receive;
  }

  TestServer server_;
};

TEST_F(CInterfaceTest, AnOperationIsCancelledByManyThreadsAtAnyTime) {
  CWorker trainer(server_, "trainer");
  trainer.Publish();
  CWorker rollout(server_, "rollout", 2);  // the other rank never comes
  for (int round = 0; round < 5; ++round) {
    th_operation* operation = StartUpdate(rollout);
    std::vector<std::thread> cancellers;
    for (int i = 0; i < 3; ++i) {
      cancellers.emplace_back([operation] {
        EXPECT_EQ(th_operation_cancel(operation), TH_OK);
        EXPECT_TRUE(IsReadable(th_operation_fd(operation), -1));
        EXPECT_EQ(th_operation_result(operation, nullptr, nullptr), TH_CANCELLED);
      });
    }
    EXPECT_EQ(th_operation_wait(operation, kPatience), TH_OK) << th_last_error();
    for (std::thread& each : cancellers) each.join();
    th_operation_free(operation);
  }
}

TEST_F(CInterfaceTest, AnOperationIsFreedWhileItRuns) {
  CWorker trainer(server_, "trainer");
  trainer.Publish();
  CWorker rollout(server_, "rollout", 2);
  for (int round = 0; round < 5; ++round) th_operation_free(StartUpdate(rollout));
  th_operation* kept = StartUpdate(rollout);
  th_buffer_free(rollout.buffer);
  rollout.buffer = nullptr;
  EXPECT_TRUE(IsReadable(th_operation_fd(kept), 0));
  EXPECT_EQ(th_operation_result(kept, nullptr, nullptr), TH_CANCELLED);
  th_operation_free(kept);
}

TEST_F(CInterfaceTest, AReceiveHandsOverEveryByteInOrder) {
  CWorker trainer(server_, "trainer");
  for (size_t i = 0; i < kBytes; ++i) trainer.memory[i] = static_cast<char>(i * 31 + i / 4096);
  trainer.Publish();
  CWorker engine(server_, "engine");
  th_receive* receive = Open(engine);
  std::string got;
  th_slice slice = TH_SLICE_INIT;
  for (;;) {
    ASSERT_EQ(th_receive_next(receive, kPatience, &slice), TH_OK) << th_last_error();
    if (slice.name == nullptr) break;
    ASSERT_EQ(slice.offset, got.size());
    got.append(static_cast<const char*>(slice.data), slice.bytes);
  }
  EXPECT_TRUE(got == std::string(trainer.memory.data(), kBytes));
  EXPECT_TRUE(IsReadable(th_receive_fd(receive), 0)) << "it stays readable at its end";
  th_receive_close(receive);
}

TEST_F(CInterfaceTest, AReceiveIsCancelledWhileItsSlicesAreTaken) {
  CWorker trainer(server_, "trainer");
  trainer.Publish();
  CWorker engine(server_, "engine");
  for (int round = 0; round < 5; ++round) {
    th_receive* receive = Open(engine);
    std::thread canceller([receive] { EXPECT_EQ(th_receive_cancel(receive), TH_OK); });
    th_slice slice = TH_SLICE_INIT;
    th_status status = TH_OK;
    do {
      status = th_receive_next(receive, kPatience, &slice);
      if (status == TH_OK && slice.name != nullptr) {
        EXPECT_EQ(static_cast<const char*>(slice.data)[slice.bytes - 1], 7);
      }
    } while (status == TH_OK && slice.name != nullptr);
    canceller.join();
    EXPECT_THAT(status, AnyOf(TH_OK, TH_CANCELLED));
    th_receive_close(receive);
  }
}

TEST_F(CInterfaceTest, AReceiveIsClosedWithASliceInHandAndBeforeOne) {
  CWorker trainer(server_, "trainer");
  trainer.Publish();
  CWorker engine(server_, "engine");
  th_receive_close(Open(engine));
  th_receive* held = Open(engine);
  th_slice slice = TH_SLICE_INIT;
  ASSERT_EQ(th_receive_next(held, kPatience, &slice), TH_OK) << th_last_error();
  th_receive_close(held);
  th_receive* outlives = Open(engine);
  th_client_free(engine.client);
  engine.client = nullptr;
  th_status status = TH_OK;
  do {
    status = th_receive_next(outlives, kPatience, &slice);
  } while (status == TH_OK && slice.name != nullptr);
  EXPECT_EQ(status, TH_CANCELLED);
  EXPECT_THAT(th_last_error(), HasSubstr("cancelled"));
  th_receive_close(outlives);
}

}  // namespace
}  // namespace th
