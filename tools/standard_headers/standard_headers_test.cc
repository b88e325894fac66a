#include "gtest/gtest.h"
#include "tools/standard_headers/library_flags_check.h"

namespace th {
namespace {

#if defined(NDEBUG) || defined(TH_UNDER_SANITIZER)

TEST(StandardHeadersTest, ArePrecompiledForLibraries) {
  EXPECT_TRUE(LibraryHadPrecompiledHeaders())
      << "no entry of gcc.BUILD has the flags that .bazelrc gives to libraries";
}

TEST(StandardHeadersTest, ArePrecompiledForTests) {
#ifndef TH_STANDARD_HEADERS_ARE_PRECOMPILED
  FAIL() << "no entry of gcc.BUILD has the flags that .bazelrc gives to tests";
#endif
}

#else

TEST(StandardHeadersTest, AreReadAsTextInADebugBuild) {
  EXPECT_FALSE(LibraryHadPrecompiledHeaders());
}

#endif

}  // namespace
}  // namespace th
