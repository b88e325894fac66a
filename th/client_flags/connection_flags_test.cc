#include "th/client_flags/connection_flags.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

// The options with which a process joins after these arguments. Throws what CLI11 refuses.
absl::StatusOr<ClientOptions> OptionsOf(std::vector<std::string> arguments) {
  CLI::App app("a program");
  MemberFlags flags{.group = "rollout"};
  AddMemberFlags(&app, &flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a list
  app.parse(arguments);
  return flags.ToClientOptions(ConnectionFlags());
}

TEST(MemberFlagsTest, RdmaDevicesAndTheirLimitReachTheClient) {
  ASSERT_OK_AND_ASSIGN(
      const ClientOptions options,
      OptionsOf({"--rdma-devices", "mlx5_0,mlx5_1", "--rdma-registered-limit", "200GiB"}));
  EXPECT_THAT(options.rdma_devices, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_EQ(options.rdma_registered_limit_bytes, uint64_t{200} << 30);
}

TEST(MemberFlagsTest, WithoutThemTheDefaultsStand) {
  ASSERT_OK_AND_ASSIGN(const ClientOptions options, OptionsOf({}));
  EXPECT_THAT(options.rdma_devices, IsEmpty());
  EXPECT_EQ(options.rdma_registered_limit_bytes, std::nullopt);
  EXPECT_EQ(options.attach_limit_bytes, std::nullopt);
}

TEST(MemberFlagsTest, TheyHaveNoEffectWithoutIbverbs) {
  for (const std::vector<std::string>& flag : std::vector<std::vector<std::string>>{
           {"--rdma-devices", "mlx5_0"}, {"--rdma-registered-limit", "1GiB"}}) {
    std::vector<std::string> arguments = {"--transports", "same_host,tcp"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    EXPECT_THAT(OptionsOf(arguments),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(flag[0] + " has no effect without ibverbs among the")));
    arguments[1] = "ibverbs,tcp";
    EXPECT_OK(OptionsOf(arguments).status());
  }
}

TEST(MemberFlagsTest, EveryTransportOfTheClientIsTakenUnderBothNames) {
  for (const std::string& name : TransportNames()) {
    ASSERT_OK_AND_ASSIGN(const ClientOptions options, OptionsOf({"--transports", name}));
    EXPECT_THAT(options.transports, ElementsAre(name));
  }
  ASSERT_OK_AND_ASSIGN(const ClientOptions options,
                       OptionsOf({"--transports", "cuda,same-host,rdma,tcp"}));
  EXPECT_THAT(options.transports, ElementsAre("cuda_ipc", "same_host", "ibverbs", "tcp"));
}

TEST(MemberFlagsTest, ARateCannotCapWhatAdaptersRead) {
  EXPECT_THAT(
      OptionsOf({"--rate", "1MB/s", "--transports", "rdma,tcp"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leave ibverbs out of --transports")));
  EXPECT_OK(OptionsOf({"--rate", "1MB/s"}).status()) << "where all may be used ibverbs is left out";
}

TEST(ExplainJoinTest, NamesFlagsWhereTheClientNamesItsOptions) {
  const absl::Status joined = ExplainJoin(absl::FailedPreconditionError(
      "option data_address: cannot listen; leave ibverbs out of the option transports"));
  EXPECT_EQ(joined.message(), "--data-address: cannot listen; leave ibverbs out of --transports");
  EXPECT_TRUE(absl::IsFailedPrecondition(joined));
}

// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// As `arguments` and the environment say. Throws what CLI11 refuses.
ConnectionFlags ConnectionOf(std::vector<std::string> arguments) {
  CLI::App app("a program");
  ConnectionFlags flags;
  AddConnectionFlags(&app, &flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a list
  app.parse(arguments);
  return flags;
}

TEST(ConnectionFlagsTest, TheEnvironmentStandsWhereNoFlagIsGiven) {
  const Variable server("TH_SERVER", "10.0.0.1:7077"), run("TH_RUN", "r7"), model("TH_MODEL", "m7");
  const ConnectionFlags flags = ConnectionOf({"--run", "mine"});
  EXPECT_EQ(flags.server, "10.0.0.1:7077");
  EXPECT_EQ(flags.run, "mine");
  EXPECT_EQ(flags.model, "m7");
}

TEST(ConnectionFlagsTest, AnEmptyVariableIsNone) {
  const Variable run("TH_RUN", "");
  EXPECT_EQ(ConnectionOf({}).run, ConnectionFlags().run);
}

TEST(ConnectionFlagsTest, AVariableThatIsNoValueIsRefusedByItsName) {
  const Variable run("TH_RUN", "a run");
  try {
    ConnectionOf({});
    ADD_FAILURE();
  } catch (const CLI::ValidationError& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("--run"));
    EXPECT_THAT(refused.what(), HasSubstr("(TH_RUN of the environment, or the configuration file"));
  }
  EXPECT_EQ(ConnectionOf({"--run", "good"}).run, "good");
}

TEST(ConnectionFlagsTest, AVariableIsCheckedForTheCommandThatIsCalledAlone) {
  const Variable run("TH_RUN", "a run");
  CLI::App app("a program");
  ConnectionFlags flags;
  AddConnectionFlags(app.add_subcommand("list"), &flags);
  app.add_subcommand("config");
  EXPECT_NO_THROW(app.parse("config"));
  EXPECT_THROW(app.parse("list"), CLI::ValidationError);
}

TEST(ConnectionFlagsTest, TheHelpNamesTheVariables) {
  CLI::App app("a program");
  ConnectionFlags flags;
  AddConnectionFlags(&app, &flags);
  for (const char* variable : {"TH_SERVER", "TH_RUN", "TH_MODEL"}) {
    EXPECT_THAT(app.help(), HasSubstr(variable));
  }
}

TEST(MemberFlagsTest, ADurationIsTakenWithItsUnitWithinItsBounds) {
  CLI::App app("a program");
  ConnectionFlags flags;
  AddConnectionFlags(&app, &flags);
  const auto parse = [&app](const std::string& value) {
    std::vector<std::string> arguments = {value, "--connect-timeout"};  // as CLI11 takes a list
    app.parse(arguments);
  };
  parse("1m30s");
  EXPECT_EQ(flags.connect_timeout, absl::Seconds(90));
  for (const char* refused : {"5", "0", "2h", "soon", "-1s"}) {
    EXPECT_THROW(parse(refused), CLI::ValidationError) << refused;
  }
  EXPECT_EQ(flags.connect_timeout, absl::Seconds(90));
}

TEST(MemberFlagsTest, ALimitThatIsNoSizeIsRefusedWithItsName) {
  for (const char* flag : {"--rdma-registered-limit", "--attach-limit"}) {
    try {
      static_cast<void>(OptionsOf({flag, "much"}).ok());
      ADD_FAILURE() << flag;
    } catch (const CLI::ValidationError& refused) {
      EXPECT_THAT(refused.what(), HasSubstr(flag));
    }
  }
}

TEST(MemberFlagsTest, TheAttachLimitReachesTheClient) {
  ASSERT_OK_AND_ASSIGN(const ClientOptions options, OptionsOf({"--attach-limit", "20GiB"}));
  EXPECT_EQ(options.attach_limit_bytes, uint64_t{20} << 30);
}

}  // namespace
}  // namespace th
