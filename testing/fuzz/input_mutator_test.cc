#include "testing/fuzz/input_mutator.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::testing {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::Le;
using ::testing::SizeIs;

const std::vector<std::string>& Corpus() {
  static const auto* corpus = new std::vector<std::string>{R"({"name":17})", std::string(300, 'x'),
                                                           "", std::string(kMaxMutatedBytes, 'y')};
  return *corpus;
}

std::vector<std::string> MutationsOf(const std::string& input, uint32_t seed) {
  InputMutator mutator(Corpus(), seed);
  std::vector<std::string> mutations;
  for (int i = 0; i < 100; ++i) mutations.push_back(mutator.Mutate(input));
  return mutations;
}

TEST(InputMutatorTest, SameSeedMakesSameInputs) {
  EXPECT_EQ(MutationsOf(Corpus()[0], 1), MutationsOf(Corpus()[0], 1));
}

TEST(InputMutatorTest, OtherSeedMakesOtherInputs) {
  EXPECT_NE(MutationsOf(Corpus()[0], 1), MutationsOf(Corpus()[0], 2));
}

TEST(InputMutatorTest, InputsAreVaried) {
  const std::vector<std::string> mutations = MutationsOf(Corpus()[0], 1);
  EXPECT_THAT(std::set<std::string>(mutations.begin(), mutations.end()), SizeIs(Gt(90)));
}

TEST(InputMutatorTest, EmptyInputGrows) {
  const std::vector<std::string> mutations = MutationsOf("", 1);
  EXPECT_THAT(std::set<std::string>(mutations.begin(), mutations.end()), SizeIs(Gt(50)));
}

TEST(InputMutatorTest, InputsStayWithinTheLimit) {
  EXPECT_THAT(MutationsOf(Corpus()[3], 1), Each(SizeIs(Le(kMaxMutatedBytes))));
}

}  // namespace
}  // namespace th::testing
