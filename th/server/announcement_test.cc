#include "th/server/announcement.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;

const Announcement kSample{.address = "127.0.0.1:4711",
                           .http_address = "127.0.0.1:80",
                           .epoch = Epoch(3),
                           .state_dir = "/s",
                           .pid = 42};

TEST(AnnouncementTest, APersonReadsOneLine) {
  EXPECT_EQ(AnnouncementLine(kSample, false),
            "tensorhub_server listening on 127.0.0.1:4711, status page http://127.0.0.1:80/, "
            "epoch 3, state /s, pid 42");
}

TEST(AnnouncementTest, AProgramReadsAnObject) {
  const auto json = nlohmann::json::parse(AnnouncementLine(kSample, true), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["address"], "127.0.0.1:4711");
  EXPECT_EQ(json["http"], "127.0.0.1:80");
  EXPECT_EQ(json["epoch"], 3);
  EXPECT_EQ(json["state_dir"], "/s");
  EXPECT_EQ(json["pid"], 42);
}

TEST(PortFileTest, HoldsThePort) {
  const std::string path = ::testing::TempDir() + "/port-file";
  ASSERT_OK(WritePortFile(path, 4711));
  int port = 0;
  std::ifstream(path) >> port;
  EXPECT_EQ(port, 4711);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST(PortFileTest, ReplacesNothingButAPlainFile) {
  const std::string target = ::testing::TempDir() + "/target", path = target + "-link";
  std::ofstream(target) << "kept";
  std::filesystem::create_symlink(target, path);
  EXPECT_THAT(WritePortFile(path, 1).message(), HasSubstr("-link is there and no plain file"));
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  ASSERT_OK(WritePortFile(target, 4711)) << "an earlier server's";
}

TEST(AddressFileTest, NamesTheHostWhereAllItsAddressesAreMeant) {
  const std::string path = ::testing::TempDir() + "/address-file";
  const auto written = [&](const std::string& address) {
    EXPECT_OK(WriteAddressFile(path, address, "node7"));
    std::string line;
    std::getline(std::ifstream(path), line);
    return line;
  };
  EXPECT_EQ(written("127.0.0.1:4711"), "127.0.0.1:4711");
  EXPECT_EQ(written("0.0.0.0:4711"), "node7:4711");
  EXPECT_EQ(written("[::]:4711"), "node7:4711");
  EXPECT_EQ(written("[::1]:4711"), "[::1]:4711");
  EXPECT_THAT(WriteAddressFile("/nowhere/address", "a:1", "").message(),
              HasSubstr("/nowhere/address"));
}

TEST(PortFileTest, AnErrorNamesThePath) {
  EXPECT_THAT(WritePortFile("/nowhere/port", 1).message(), HasSubstr("/nowhere/port"));
}

}  // namespace
}  // namespace th
