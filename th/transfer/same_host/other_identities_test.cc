// The users of the transport: processes of an unprivileged user, readers of other users, and
// readers in namespaces of their own. Both ends are this program, started anew after its process
// has become what it is to be. What the machine does not allow is skipped by name.
#include "th/transfer/same_host/same_host_transport.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/test_peers.h"

namespace th::same_host {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::th::testing::kHolderWorker;
using ::th::testing::PatientLimits;
using ::th::testing::TestHolder;
using ::th::testing::TestShard;
using ::th::testing::TestSink;

constexpr char kArrived[] = "arrived";
constexpr char kCannot[] = "cannot ";  // what the machine does not allow follows

struct Identity {
  uid_t user = 0;
  bool own_user_namespace = false;  // in which the user has the same number
  bool own_pid_namespace = false;
};

// Two users without privileges; where the test has none itself there is its own user alone.
uid_t SomeUser() { return geteuid() == 0 ? 65534 : geteuid(); }
uid_t OtherUser() { return SomeUser() - 1; }

// ---- this program as one end

std::unique_ptr<Transport> NewTransport() {
  auto transport = NewSameHostTransport({.limits = PatientLimits()});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

// Serves until its input ends.
int SourceMain() {
  TestShard shard{TestShard::Spec{}};
  shard.FillWith(1);
  shard.store()->Publish(BufferGeneration(1));
  TestHolder holder(shard.store());
  const auto transport = NewTransport();
  const auto attached = transport->Attach(shard.store()->regions());
  EXPECT_OK(attached.status());
  transport->AddHolder(kHolderWorker, &holder);
  std::cout << transport->endpoints()[0].address << std::endl;
  std::string line;
  std::getline(std::cin, line);
  transport->RemoveHolder(kHolderWorker);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// Says that all has arrived, or why not.
int ReaderMain(const std::string& address) {
  TestShard expected{TestShard::Spec{}}, received{TestShard::Spec{}};
  expected.FillWith(1);
  TestSink sink(&received);
  const auto transport = NewTransport();
  const Endpoint source{.address = address, .transport = kSameHostTransport, .site = ""};
  auto pull = transport->Open(
      TestHolder(received.store()).Target(source, received.store()->shared_layout()), &sink);
  pull->Ask({SegmentIndex(received.segment_count() - 1), SegmentIndex(received.segment_count())});
  pull->Ask({SegmentIndex(0), SegmentIndex(received.segment_count() - 1)});
  while (!sink.closed() && sink.segments().size() < received.segment_count()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (!sink.closed()) {
    std::cout << (received.Equals(expected) ? kArrived : "other bytes have arrived") << std::endl;
    pull->Close();
    sink.AwaitClosed();
    return 0;
  }
  const auto [failure, detail] = sink.AwaitClosed();
  std::cout << (failure == SourceFailure::kConnect ? "not reached: " : "failed: ") << detail
            << std::endl;
  return 0;
}

// ---- an end, as the test sees it

[[noreturn]] void Cannot(const std::string& what) {
  const std::string line = absl::StrCat(kCannot, what, ": ", std::strerror(errno), "\n");
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(2);
  _exit(0);
}

void WriteTo(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0 || write(file, text.data(), text.size()) < 0) Cannot(absl::StrCat("write ", path));
  close(file);
}

void Become(const Identity& identity) {
  if (identity.own_pid_namespace) {
    if (unshare(CLONE_NEWPID) != 0) Cannot("unshare(CLONE_NEWPID)");
    const pid_t first = fork();  // of the new namespace
    if (first != 0) {
      int status = 0;
      waitpid(first, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
  }
  if (geteuid() != identity.user) {
    const std::string become = absl::StrCat("become user ", identity.user);
    if (setgroups(0, nullptr) != 0) Cannot(become);
    if (setresgid(identity.user, identity.user, identity.user) != 0) Cannot(become);
    if (setresuid(identity.user, identity.user, identity.user) != 0) Cannot(become);
  }
  if (!identity.own_user_namespace) return;
  const gid_t group = getegid();
  // A process that has changed its user may not write its own files in /proc otherwise.
  prctl(PR_SET_DUMPABLE, 1);
  if (unshare(CLONE_NEWUSER) != 0) Cannot("unshare(CLONE_NEWUSER)");
  WriteTo("/proc/self/setgroups", "deny");
  WriteTo("/proc/self/uid_map", absl::StrCat(identity.user, " ", identity.user, " 1"));
  WriteTo("/proc/self/gid_map", absl::StrCat(group, " ", group, " 1"));
}

class Process {
 public:
  Process(const Identity& identity, std::vector<std::string> arguments) {
    std::array<int, 2> to{}, from{};
    EXPECT_EQ(pipe2(to.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from.data(), O_CLOEXEC), 0);
    // By its descriptor, as others may not see the folders that it lies in.
    const int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    std::string name = "other_identities_test";
    std::vector<char*> words = {name.data()};
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      Become(identity);
      fexecve(program, words.data(), environ);
      Cannot("start this program");
    }
    for (const int fd : {to[0], from[1], program}) close(fd);
    input_ = to[1];
    FILE* const output = fdopen(from[0], "r");
    for (int c = fgetc(output); c != EOF && c != '\n'; c = fgetc(output)) {
      said_ += static_cast<char>(c);
    }
    fclose(output);
  }
  ~Process() {
    close(input_);
    int status = 0;
    waitpid(process_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ": " << said_;
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Its first line.
  const std::string& said() const { return said_; }

 private:
  pid_t process_ = 0;
  int input_ = -1;
  std::string said_;
};

// How a reader fares with a source; what begins with kCannot says what the machine does not allow.
std::string Fares(const Identity& reader_is, const Identity& source_is,
                  const char* source = "--source") {
  const Process serving(source_is, {source});
  if (absl::StartsWith(serving.said(), kCannot)) return serving.said();
  return Process(reader_is, {"--reader", serving.said()}).said();
}

#define SKIP_WHERE_IMPOSSIBLE(said)                                                    \
  if (absl::StartsWith(said, kCannot)) {                                               \
    GTEST_SKIP() << "this machine or sandbox does not allow it: this test " << (said); \
  }

// Where Yama restricts who reads whose memory, an unprivileged user has no use of the transport.
bool YamaRestricts() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string scope;
  file >> scope;
  return !scope.empty() && scope != "0";
}

TEST(OtherIdentitiesTest, ProcessesOfAnUnprivilegedUserUseIt) {
  for (const char* source : {"--source", "--source-in-shared-memory"}) {
    const std::string said = Fares({.user = SomeUser()}, {.user = SomeUser()}, source);
    SKIP_WHERE_IMPOSSIBLE(said);
    if (YamaRestricts()) {
      EXPECT_THAT(said, HasSubstr("kernel.yama.ptrace_scope is ")) << source;
    } else {
      EXPECT_EQ(said, kArrived) << source;
    }
  }
}

TEST(OtherIdentitiesTest, AReaderOfAnotherUserIsRefusedAndToldOfBoth) {
  const std::string said = Fares({.user = OtherUser()}, {.user = SomeUser()});
  SKIP_WHERE_IMPOSSIBLE(said);
  EXPECT_THAT(said, AllOf(HasSubstr("not reached: "),
                          HasSubstr(absl::StrCat("the source runs as user ", SomeUser(),
                                                 ", this process as user ", OtherUser()))));
}

TEST(OtherIdentitiesTest, AnUnprivilegedReaderOfRootsMemoryIsRefused) {
  const std::string said = Fares({.user = SomeUser()}, {.user = 0});
  SKIP_WHERE_IMPOSSIBLE(said);
  EXPECT_THAT(said, HasSubstr("not reached: the source runs as user 0"));
}

TEST(OtherIdentitiesTest, RootReadsAnUnprivilegedSource) {
  const std::string said = Fares({.user = 0}, {.user = SomeUser()});
  SKIP_WHERE_IMPOSSIBLE(said);
  EXPECT_EQ(said, kArrived);
}

TEST(OtherIdentitiesTest, AReaderInAUserNamespaceOfItsOwnIsRefused) {
  const std::string said =
      Fares({.user = SomeUser(), .own_user_namespace = true}, {.user = SomeUser()});
  SKIP_WHERE_IMPOSSIBLE(said);
  EXPECT_THAT(said, AllOf(HasSubstr("not reached: "),
                          HasSubstr("does not let this process read the memory of process"),
                          AnyOf(HasSubstr("as one user in one user namespace"),
                                HasSubstr("kernel.yama.ptrace_scope is "))));
}

TEST(OtherIdentitiesTest, AReaderInAPidNamespaceOfItsOwnIsRefused) {
  const std::string said =
      Fares({.user = SomeUser(), .own_pid_namespace = true}, {.user = SomeUser()});
  SKIP_WHERE_IMPOSSIBLE(said);
  EXPECT_THAT(said, HasSubstr("not reached: the source's process cannot be seen from here: it is "
                              "in another PID namespace"));
}

}  // namespace
}  // namespace th::same_host

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--source") return th::same_host::SourceMain();
  if (role == "--source-in-shared-memory") {
    th::testing::TestMemory::Share(true);
    return th::same_host::SourceMain();
  }
  if (role == "--reader" && argc == 3) return th::same_host::ReaderMain(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
