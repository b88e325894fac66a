#include "th/transfer/ibverbs/verbs_library.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::ibverbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(VerbsLibraryTest, WithoutTheLibraryItSaysWhatToInstall) {
  EXPECT_THAT(
      VerbsLibrary::Load("libibverbs-which-is-nowhere.so.1"),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("libibverbs-which-is-nowhere.so.1"),
                                                     HasSubstr("ibverbs-providers"))));
}

TEST(VerbsLibraryTest, LibraryWithoutTheFunctionsIsTooOld) {
  EXPECT_THAT(VerbsLibrary::Load("libc.so.6"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("ibv_get_device_list"), HasSubstr("rdma-core 32"))));
}

}  // namespace
}  // namespace th::ibverbs
