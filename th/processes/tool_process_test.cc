#include "th/processes/tool_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;

std::unique_ptr<ChildProcess> Shell(const std::string& script) {
  auto child = ChildProcess::Start(
      {.name = "the tool", .arguments = {"/bin/sh", "-c", script}, .log_path = "/dev/null"});
  EXPECT_OK(child);
  return *std::move(child);
}

// A socket that listens as long as it lives.
class Listener {
 public:
  explicit Listener(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
  }
  ~Listener() { close(fd_); }

 private:
  const int fd_;
};

TEST(ToolProcessTest, ReadsAListeningPortOutOfTheKernelsTable) {
  constexpr char kTable[] =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n"
      "   1: 0100007F:C350 0100007F:1F91 01 00000000:00000000 00:00000000 00000000\n";
  EXPECT_TRUE(ListensOn(kTable, 0x1F90));
  EXPECT_FALSE(ListensOn(kTable, 0xC350)) << "a connection, nobody listens";
  EXPECT_FALSE(ListensOn(kTable, 0x1F91)) << "the other end's port";
  EXPECT_FALSE(ListensOn("", 1));
}

TEST(ToolProcessTest, WaitsUntilSomebodyListens) {
  ASSERT_OK_AND_ASSIGN(const uint16_t port, UnusedPort("the tool"));
  const auto child = Shell("read line");
  EXPECT_THAT(AwaitListening(*child, port, absl::Milliseconds(50), nullptr),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the tool")));
  const Listener listener(port);
  EXPECT_OK(AwaitListening(*child, port, absl::Seconds(30), nullptr));
}

TEST(ToolProcessTest, SaysWhyAToolThatHasEndedDoesNotListen) {
  ASSERT_OK_AND_ASSIGN(const uint16_t port, UnusedPort("the tool"));
  const auto child = Shell("echo no such device; echo; exit 3");
  EXPECT_THAT(AwaitListening(*child, port, absl::Seconds(30), nullptr),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the tool ended with status 3: no such device")));
}

TEST(ToolProcessTest, ReadsAllLinesAndStopsWhenAsked) {
  EXPECT_THAT(ReadToEnd(*Shell("echo one; echo two"), absl::Seconds(30), nullptr),
              IsOkAndHolds(ElementsAre("one", "two")));
  EXPECT_THAT(ReadToEnd(*Shell("read line"), absl::Seconds(30), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(ReadToEnd(*Shell("read line"), absl::Milliseconds(20), nullptr),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the tool takes too long")));
}

}  // namespace
}  // namespace th
