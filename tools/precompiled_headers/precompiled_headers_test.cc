// These questions stand before the includes: what they find comes from precompiled headers.
#ifdef TH_HEADERS_ARE_PRECOMPILED
constexpr bool kTestHasStandardLibrary = true;
#else
constexpr bool kTestHasStandardLibrary = false;
#endif
#ifdef ABSL_STATUS_STATUS_H_
constexpr bool kTestHasAbseil = true;
#else
constexpr bool kTestHasAbseil = false;
#endif
#ifdef GOOGLEMOCK_INCLUDE_GMOCK_GMOCK_H_
constexpr bool kTestHasGoogleMock = true;
#else
constexpr bool kTestHasGoogleMock = false;
#endif

#include "gtest/gtest.h"
#include "tools/precompiled_headers/library_flags_check.h"

namespace th {
namespace {

#if defined(NDEBUG) || defined(TH_UNDER_SANITIZER)

TEST(PrecompiledHeadersTest, FitTheFlagsOfLibraries) {
  const PrecompiledHeaders headers = LibraryHeaders();
  EXPECT_TRUE(headers.standard_library)
      << "no entry of gcc.BUILD has the flags that .bazelrc gives to libraries";
  EXPECT_TRUE(headers.abseil) << "@gcc12 has no link to Abseil's headers (repositories.bzl)";
}

TEST(PrecompiledHeadersTest, FitTheFlagsOfTests) {
  EXPECT_TRUE(kTestHasStandardLibrary)
      << "no entry of gcc.BUILD has the flags that .bazelrc gives to tests";
  EXPECT_TRUE(kTestHasAbseil) << "@gcc12 has no link to Abseil's headers (repositories.bzl)";
  EXPECT_TRUE(kTestHasGoogleMock)
      << "@gcc12 has no link to GoogleTest's headers (repositories.bzl)";
}

#else

TEST(PrecompiledHeadersTest, AreReadAsTextInADebugBuild) {
  EXPECT_FALSE(LibraryHeaders().standard_library);
  EXPECT_FALSE(kTestHasStandardLibrary || kTestHasAbseil || kTestHasGoogleMock);
}

#endif

}  // namespace
}  // namespace th
