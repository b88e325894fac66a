#include "testing/fake_cuda/fake_cuda.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace th::testing {
namespace {

template <typename Function>
Function* Find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "the fake CUDA driver has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

std::string FakeCuda::Path() {
  const char* sources = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (sources == nullptr || workspace == nullptr) return "testing/fake_cuda/libcuda_fake.so";
  return std::string(sources) + "/" + workspace + "/testing/fake_cuda/libcuda_fake.so";
}

FakeCuda::FakeCuda() : library_(dlopen(Path().c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
}

void FakeCuda::Fail(const std::string& function, CUresult result, int skipped, int times) const {
  Find<void(const char*, int, int, int)>(library_, "th_fake_cuda_fail")(function.c_str(), result,
                                                                        skipped, times);
}

void FakeCuda::HoldStreams(bool held) const {
  Find<void(int)>(library_, "th_fake_cuda_hold_streams")(held ? 1 : 0);
}

void FakeCuda::HoldStreamsOf(int device, bool held) const {
  Find<void(int, int)>(library_, "th_fake_cuda_hold_streams_of")(device, held ? 1 : 0);
}

void FakeCuda::AwaitHeld() const { Find<void()>(library_, "th_fake_cuda_await_held")(); }

uint64_t FakeCuda::live() const { return Find<uint64_t()>(library_, "th_fake_cuda_live")(); }

uint64_t FakeCuda::imports() const { return Find<uint64_t()>(library_, "th_fake_cuda_imports")(); }

std::byte* FakeCuda::AliasOf(void* device_address) const {
  return static_cast<std::byte*>(
      Find<void*(void*)>(library_, "th_fake_cuda_alias")(device_address));
}

uint64_t FakeCuda::flushes() const { return Find<uint64_t()>(library_, "th_fake_cuda_flushes")(); }

uint64_t FakeCuda::synchronizations() const {
  return Find<uint64_t()>(library_, "th_fake_cuda_synchronizations")();
}

uint64_t FakeCuda::bytes_to_host() const {
  return Find<uint64_t()>(library_, "th_fake_cuda_bytes_to_host")();
}

void FakeCuda::OrderWrites(int ordering) const {
  Find<void(int)>(library_, "th_fake_cuda_order_writes")(ordering);
}

void FakeCuda::RefusePeers(bool refused) const {
  Find<void(int)>(library_, "th_fake_cuda_refuse_peers")(refused ? 1 : 0);
}

void FakeCuda::AllowOwnImports(bool allowed) const {
  Find<void(int)>(library_, "th_fake_cuda_allow_own_imports")(allowed ? 1 : 0);
}

}  // namespace th::testing
