#include <gtest/gtest.h>

#ifndef TH_STANDARD_HEADERS_ARE_COMPILED
#error "no file of standard.h.gch fits the flags of tests: compare gcc.BUILD with .bazelrc"
#endif

namespace th {

bool StandardHeadersAreCompiled();

namespace {

TEST(StandardHeadersTest, AreCompiledForTestsAndLibraries) {
  EXPECT_TRUE(StandardHeadersAreCompiled());
}

}  // namespace
}  // namespace th
