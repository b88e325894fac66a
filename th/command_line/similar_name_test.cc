#include "th/command_line/similar_name.h"

#include "gtest/gtest.h"

namespace th {
namespace {

const std::vector<std::string>& Names() {
  static const auto& names =
      *new std::vector<std::string>{"list", "describe", "pin", "wait", "--server", "--shards"};
  return names;
}

TEST(SimilarNameTest, ASlipOfTheFingersIsMended) {
  EXPECT_EQ(SimilarName("lst", Names()), "list");
  EXPECT_EQ(SimilarName("lsit", Names()), "list");
  EXPECT_EQ(SimilarName("descrieb", Names()), "describe");
  EXPECT_EQ(SimilarName("pinn", Names()), "pin");
  EXPECT_EQ(SimilarName("--sever", Names()), "--server");
}

TEST(SimilarNameTest, AnotherWordIsNone) {
  EXPECT_EQ(SimilarName("ls", Names()), "");
  EXPECT_EQ(SimilarName("rollback", Names()), "");
  EXPECT_EQ(SimilarName("", Names()), "");
  EXPECT_EQ(SimilarName("list", {}), "");
}

}  // namespace
}  // namespace th
