// How soon a reader hears that the process it reads from has been killed, or stands still, over
// each transport that needs no adapter. The source is this program, started anew; all limits are
// those that workers have.
//
// What is bounded is what the reader does, and a machine that is busy adds to it: of several tries
// the fastest counts. A reader that only waits for silence where it should hear of an end, or that
// waits longer than it should, is too slow in each of them.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/same_host/same_host_transport.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

constexpr absl::Duration kKilledIsNoticed = absl::Milliseconds(100);
constexpr absl::Duration kStoppedIsNoticed = absl::Milliseconds(500);
constexpr WorkerId kSource(11), kReader(12);
constexpr AssignmentId kAssignment(1);
// The segments that the source holds; it says that it is alive while the reader waits for the
// others.
constexpr uint64_t kHeldSegments = 4;

std::unique_ptr<Transport> NewTransport(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Transport>> transport = absl::UnimplementedError(name);
  if (name == "tcp") transport = NewTcpTransport({});
  if (name == "same_host") transport = NewSameHostTransport({});
  if (name == "cuda_ipc") transport = NewCudaIpcTransport({.driver = CudaTestDevice::DriverPath()});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

// A node of the transport, whose shard lies in GPU memory where it moves that.
struct Node {
  Node(const std::string& transport, WorkerId worker)
      : device(transport == "cuda_ipc" ? std::make_unique<CudaTestDevice>() : nullptr),
        node(NewTransport(transport), worker, TestShard::Spec{.device = device.get()}) {
    auto memory = node.transport->Attach(node.shard.store()->regions());
    EXPECT_OK(memory.status());
    attached = *std::move(memory);
  }

  const std::unique_ptr<CudaTestDevice> device;
  TestNode node;
  std::unique_ptr<AttachedMemory> attached;
};

// The source's process: serves until its input ends.
int SourceMain(const std::string& transport) {
  Node source(transport, kSource);
  source.node.PublishFirst(kHeldSegments);
  std::cout << source.node.address() << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

class SourceProcess {
 public:
  explicit SourceProcess(const std::string& transport) {
    std::array<int, 2> to{}, from{};
    EXPECT_EQ(pipe2(to.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from.data(), O_CLOEXEC), 0);
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl("/proc/self/exe", "lost_sources_test", "--source", transport.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    input_ = to[1];
    FILE* const output = fdopen(from[0], "r");
    for (int c = fgetc(output); c != EOF && c != '\n'; c = fgetc(output)) {
      address_ += static_cast<char>(c);
    }
    fclose(output);
  }
  ~SourceProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    close(input_);
  }
  SourceProcess(const SourceProcess&) = delete;
  SourceProcess& operator=(const SourceProcess&) = delete;

  void Signal(int number) const { EXPECT_EQ(kill(process_, number), 0); }
  const std::string& address() const { return address_; }

 private:
  pid_t process_ = 0;
  int input_ = -1;
  std::string address_;
};

struct Notice {
  SourceFailure failure = SourceFailure::kConnect;
  std::string detail;
  // From the signal on; infinite where a busy machine lost the source before it.
  absl::Duration after = absl::InfiniteDuration();
};

// A fill that has all that its source holds, and the source's process is given the signal.
Notice NoticeOf(const std::string& transport, int signal) {
  const SourceProcess source(transport);
  Node reader(transport, kReader);
  AssignedSource assigned = reader.node.AsSource();
  assigned.buffer.worker = kSource;
  assigned.endpoints[0].address = source.address();
  TestHolder like(reader.node.shard.store());  // has the same key
  like.set_worker(kSource);
  assigned.capability = like.Mint();
  Notice notice;
  absl::Time noticed;
  absl::Notification lost;
  reader.node.observer.OnLoss([&](const TestObserver::Loss& loss) {
    if (lost.HasBeenNotified()) return;
    noticed = absl::Now();
    notice.failure = loss.failure;
    notice.detail = loss.detail;
    lost.Notify();
  });
  reader.node.StartFill().SetSources(kAssignment, {assigned});
  const absl::Time deadline = absl::Now() + kPatience;
  while (reader.node.shard.store()->held().count() < kHeldSegments && absl::Now() < deadline &&
         !lost.WaitForNotificationWithTimeout(absl::Milliseconds(1))) {
  }
  const bool early = lost.HasBeenNotified();
  const absl::Time given = absl::Now();
  source.Signal(signal);
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(kPatience)) << "the loss is never noticed";
  if (!early && lost.HasBeenNotified() && noticed >= given) notice.after = noticed - given;
  reader.node.StopFill();
  return notice;
}

class LostSourcesTest : public ::testing::TestWithParam<std::string> {
 protected:
  // The fastest of some tries, once one is within the bound.
  static Notice FastestNotice(int signal, absl::Duration bound) {
    constexpr int kTries = 10;
    Notice fastest;
    for (int i = 0; i < kTries && fastest.after > bound; ++i) {
      const Notice notice = NoticeOf(GetParam(), signal);
      if (notice.after <= fastest.after) fastest = notice;
    }
    std::printf("%s: noticed after %s: %s\n", GetParam().c_str(),
                absl::FormatDuration(fastest.after).c_str(), fastest.detail.c_str());
    return fastest;
  }
};

TEST_P(LostSourcesTest, AKilledSourceIsNoticedByItsEnd) {
  const Notice notice = FastestNotice(SIGKILL, kKilledIsNoticed);
  EXPECT_LE(notice.after, kKilledIsNoticed) << notice.detail;
  EXPECT_EQ(notice.failure, SourceFailure::kClosed) << notice.detail;
}

TEST_P(LostSourcesTest, AStoppedSourceIsNoticedByItsSilence) {
  const Notice notice = FastestNotice(SIGSTOP, kStoppedIsNoticed);
  EXPECT_LE(notice.after, kStoppedIsNoticed) << notice.detail;
  EXPECT_EQ(notice.failure, SourceFailure::kStalled) << notice.detail;
}

INSTANTIATE_TEST_SUITE_P(Transports, LostSourcesTest,
                         ::testing::Values("tcp", "same_host", "cuda_ipc"),
                         [](const auto& transport) { return transport.param; });

}  // namespace
}  // namespace th::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--source") return th::testing::SourceMain(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
