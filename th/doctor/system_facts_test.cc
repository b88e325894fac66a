#include "th/doctor/system_facts.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kStubCuda[] = "th/doctor/libstub_cuda.so";
constexpr char kStubVerbs[] = "th/doctor/libstub_verbs.so";

TEST(SystemFactsTest, AsksTheVerbsLibraryForItsDevices) {
  const VerbsLibraryFacts facts = AskVerbsLibrary(kStubVerbs);
  EXPECT_TRUE(facts.library.opened) << facts.library.error;
  EXPECT_THAT(facts.device_names, ElementsAre("a", "b"));
}

TEST(SystemFactsTest, ALibraryThatIsNotThereIsSaidInTheLinkersWords) {
  const VerbsLibraryFacts verbs = AskVerbsLibrary("libnot_there.so.1");
  EXPECT_FALSE(verbs.library.opened);
  EXPECT_THAT(verbs.library.error, HasSubstr("libnot_there.so.1"));
  GpuFacts gpu;
  AskCudaLibrary("libnot_there.so.1", &gpu);
  EXPECT_FALSE(gpu.library.opened);
  EXPECT_THAT(gpu.library.error, HasSubstr("libnot_there.so.1"));
}

TEST(SystemFactsTest, ALibraryOfAnotherKindIsRefused) {
  const VerbsLibraryFacts verbs = AskVerbsLibrary(kStubCuda);
  EXPECT_FALSE(verbs.library.opened);
  EXPECT_THAT(verbs.library.error, HasSubstr("ibv_"));
  GpuFacts gpu;
  AskCudaLibrary(kStubVerbs, &gpu);
  EXPECT_FALSE(gpu.library.opened);
  EXPECT_THAT(gpu.library.error, HasSubstr("cu"));
}

TEST(SystemFactsTest, AsksTheCudaLibraryForVersionAndGpus) {
  GpuFacts gpu;
  AskCudaLibrary(kStubCuda, &gpu);
  EXPECT_TRUE(gpu.library.opened) << gpu.library.error;
  EXPECT_EQ(gpu.init_error, 0);
  EXPECT_EQ(gpu.driver_version, 13000);
  ASSERT_THAT(gpu.gpus, SizeIs(2));
  EXPECT_EQ(gpu.gpus[0].name, "Stub GPU 0");
  EXPECT_TRUE(gpu.gpus[0].dma_buf);
  EXPECT_FALSE(gpu.gpus[1].dma_buf);
}

TEST(SystemFactsTest, AnErrorOfCudaIsKept) {
  setenv("STUB_CUDA_INIT_ERROR", "802", 1);
  GpuFacts gpu;
  AskCudaLibrary(kStubCuda, &gpu);
  unsetenv("STUB_CUDA_INIT_ERROR");
  EXPECT_EQ(gpu.init_error, 802);
  EXPECT_EQ(gpu.driver_version, 13000);
  EXPECT_THAT(gpu.gpus, IsEmpty());
}

TEST(SystemFactsTest, AFileSystemHasASize) {
  const std::optional<FileSystemSize> size = SizeOf(::testing::TempDir());
  ASSERT_TRUE(size.has_value());
  EXPECT_GT(size->total_bytes, 0u);
  EXPECT_LE(size->free_bytes, size->total_bytes);
  EXPECT_EQ(SizeOf("/not/there"), std::nullopt);
}

TEST(SystemFactsTest, TheClockIsAsked) {
  ClockFacts clock;
  AskClock(&clock);
  EXPECT_TRUE(clock.synchronised.has_value());
  EXPECT_TRUE(clock.max_error_us.has_value());
}

// Without a seccomp profile a process may always read itself.
TEST(SystemFactsTest, MemoryCanBeReadHere) { EXPECT_EQ(TryReadingMemory(), 0); }

}  // namespace
}  // namespace th::doctor
