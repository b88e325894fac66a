#include "th/transfer/ibverbs/reaching_verbs.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"

namespace th::ibverbs {
namespace {

struct Mapped {
  void* address = nullptr;
  size_t bytes = 0;
};

// The functions of a library have no room for whose they are.
struct Real {
  std::shared_ptr<const VerbsLibrary> library;
  testing::FakeCuda cuda;
  absl::Mutex mu;
  std::map<ibv_mr*, Mapped> mapped ABSL_GUARDED_BY(mu);  // of DMA-BUFs
};
Real& TheReal() {
  static auto* const real = new Real;
  return *real;
}

// The adapter goes by the device address, and finds the bytes where the fake has them.
ibv_mr* RegisterAlias(ibv_pd* domain, void* address, size_t bytes, uint64_t remote_address,
                      unsigned int access) {
  return TheReal().library->reg_mr_iova2(domain, TheReal().cuda.AliasOf(address), bytes,
                                         remote_address, access);
}

ibv_mr* RegisterFile(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t remote_address,
                     int file_descriptor, int access) {
  const off_t begin = lseek(file_descriptor, 0, SEEK_CUR);
  const Mapped mapped{.address = mmap(nullptr, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                      file_descriptor, begin),
                      .bytes = offset + bytes};
  if (mapped.address == MAP_FAILED) return nullptr;
  ibv_mr* const region =
      TheReal().library->reg_mr_iova2(domain, static_cast<char*>(mapped.address) + offset, bytes,
                                      remote_address, static_cast<unsigned>(access));
  if (region == nullptr) {
    munmap(mapped.address, mapped.bytes);
    return nullptr;
  }
  const absl::MutexLock lock(&TheReal().mu);
  TheReal().mapped[region] = mapped;
  return region;
}

int Deregister(ibv_mr* region) {
  Mapped mapped;
  {
    const absl::MutexLock lock(&TheReal().mu);
    if (const auto found = TheReal().mapped.extract(region)) mapped = found.mapped();
  }
  const int error = TheReal().library->dereg_mr(region);
  if (mapped.address != nullptr) munmap(mapped.address, mapped.bytes);
  return error;
}

}  // namespace

std::shared_ptr<const VerbsLibrary> ReachingVerbs(GpuReach reach) {
  Real& real = TheReal();
  if (real.library == nullptr) {
    auto loaded = VerbsLibrary::Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    real.library = *std::move(loaded);
  }
  auto verbs = std::make_shared<VerbsLibrary>(*real.library);
  verbs->dereg_mr = &Deregister;
  if (reach == GpuReach::kPeermem) verbs->reg_mr_iova2 = &RegisterAlias;
  if (reach == GpuReach::kDmaBuf) verbs->reg_dmabuf_mr = &RegisterFile;
  return verbs;
}

}  // namespace th::ibverbs
