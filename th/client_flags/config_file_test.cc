#include "th/client_flags/config_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFileTest() {
    for (const char* variable : {"TH_CONFIG", "TH_SERVER", "TH_RUN", "TH_MODEL"})
      unsetenv(variable);
    folder_ = absl::StrCat(::testing::TempDir(), "/",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  std::string folder_;
};

absl::Status StatusOf(const std::string& text) { return ParseConfigFile("/c", text).status(); }

TEST_F(ConfigFileTest, WithoutAFileTheDefaultsStand) {
  ASSERT_OK_AND_ASSIGN(const ConfigFile file, ReadConfigFile());
  EXPECT_EQ(file.path, "");
  EXPECT_THAT(SettingsInForce(file), ElementsAre(FieldsAre("server", "127.0.0.1:7077", "default"),
                                                 FieldsAre("run", "default", "default"),
                                                 FieldsAre("model", "default", "default")));
}

TEST_F(ConfigFileTest, TheEnvironmentGoesBeforeTheFileAndTheFileBeforeTheDefault) {
  const std::string path =
      Write("tensorhub/config.toml", "# of this cluster\nserver = \"h:1\"  # the head\nrun='r1'\n");
  setenv("TH_RUN", "mine", 1);
  setenv("TH_SERVER", "", 1);
  ASSERT_OK_AND_ASSIGN(const ConfigFile file, ReadConfigFile());
  const auto in_force =
      ElementsAre(FieldsAre("server", "h:1", path), FieldsAre("run", "mine", "TH_RUN"),
                  FieldsAre("model", "default", "default"));
  EXPECT_THAT(SettingsInForce(file), in_force);
  SetEnvironmentFrom(file);
  EXPECT_STREQ(std::getenv("TH_SERVER"), "h:1");
  EXPECT_STREQ(std::getenv("TH_RUN"), "mine");
  EXPECT_EQ(std::getenv("TH_MODEL"), nullptr);
  EXPECT_THAT(SettingsInForce(file), in_force);
}

TEST_F(ConfigFileTest, TheVariableNamesAFileThatHasToBeThere) {
  Write("tensorhub/config.toml", "run = \"usual\"\n");
  const std::string named = Write("named.toml", "run = \"named\"\n");
  setenv("TH_CONFIG", named.c_str(), 1);
  ASSERT_OK_AND_ASSIGN(ConfigFile file, ReadConfigFile());
  EXPECT_EQ(file.path, named);
  EXPECT_EQ(SettingsInForce(file)[1].value, "named");
  setenv("TH_CONFIG", "", 1);
  ASSERT_OK_AND_ASSIGN(file, ReadConfigFile());
  EXPECT_EQ(file.path, "");
  setenv("TH_CONFIG", "/nowhere/config.toml", 1);
  EXPECT_THAT(ReadConfigFile(), StatusIs(absl::StatusCode::kNotFound,
                                         AllOf(HasSubstr("/nowhere/config.toml"),
                                               HasSubstr("sets TH_CONFIG to it): write it"))));
}

TEST_F(ConfigFileTest, AHomeThatIsNoFolderHasNoFile) {
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", "/dev/null", 1);
  ASSERT_OK_AND_ASSIGN(const ConfigFile file, ReadConfigFile());
  EXPECT_THAT(file.path, AnyOf("", "/etc/tensorhub/config.toml"));
}

TEST_F(ConfigFileTest, AFolderInItsPlaceIsAnError) {
  setenv("TH_CONFIG", folder_.c_str(), 1);
  EXPECT_THAT(ReadConfigFile(), StatusIs(absl::StatusCode::kUnknown,
                                         AllOf(HasSubstr(folder_), HasSubstr("mend it"))));
}

TEST_F(ConfigFileTest, AFileWithoutEndIsRefused) {
  setenv("TH_CONFIG", "/dev/zero", 1);
  EXPECT_THAT(ReadConfigFile(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 65536 bytes")));
}

TEST_F(ConfigFileTest, AnEmptyFileSetsNothing) {
  setenv("TH_CONFIG", Write("empty.toml", "").c_str(), 1);
  ASSERT_OK_AND_ASSIGN(const ConfigFile file, ReadConfigFile());
  EXPECT_EQ(SettingsInForce(file)[0].from, "default");
}

TEST_F(ConfigFileTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(
      StatusOf("sever = \"h:1\"\n"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "/c: 'sever' is not a setting; a configuration file may set server, run, model"));
  EXPECT_THAT(
      StatusOf("[follow]\nrun = \"a\"\n"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'follow.run' is not a setting")));
  EXPECT_THAT(StatusOf("run = \"a\"\nrun = \"b\"\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run takes one value")));
  EXPECT_THAT(StatusOf("run = [\"a\", \"b\"]\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run takes one value")));
  EXPECT_THAT(StatusOf("run = \"\"\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run takes one value")));
}

TEST_F(ConfigFileTest, AWrongFileIsAUsageErrorOfEverythingButHelp) {
  setenv("TH_CONFIG", Write("wrong.toml", "sever = \"h:1\"\n").c_str(), 1);
  bool ran = false;
  CLI::App app;
  app.require_subcommand(1);
  app.add_subcommand("list", "")->callback([&ran] { ran = true; });
  AddConfigFile(&app);
  EXPECT_THROW(app.parse("list --help"), CLI::CallForHelp);
  EXPECT_THROW(app.parse("list"), CLI::ConfigError);
  EXPECT_FALSE(ran);
  setenv("TH_CONFIG", "", 1);
  app.parse("list");
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace th
