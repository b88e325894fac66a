#include "th/doctor/system_facts.h"

#include <dlfcn.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "infiniband/verbs.h"

namespace th::doctor {
namespace {

// An open library; its functions are good while it lives.
class Library {
 public:
  explicit Library(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    facts_.opened = handle_ != nullptr;
    if (!facts_.opened) facts_.error = dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const LibraryFacts& facts() const { return facts_; }

  // Null, and no longer opened, when the library lacks it: then it is no library of this kind.
  template <typename Function>
  Function* Find(const char* name) {
    if (handle_ == nullptr) return nullptr;
    void* function = dlsym(handle_, name);
    if (function == nullptr) {
      facts_.opened = false;
      facts_.error = dlerror();
    }
    return reinterpret_cast<Function*>(function);
  }

 private:
  void* handle_;
  LibraryFacts facts_;
};

// Constants of CUDA's driver interface, which promises that they stay as they are.
constexpr int kCudaSuccess = 0;
constexpr int kDmaBufSupported = 124;  // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
constexpr size_t kMaxGpuName = 256;

}  // namespace

VerbsLibraryFacts AskVerbsLibrary(const std::string& library) {
  VerbsLibraryFacts facts;
  Library verbs(library);
  auto* list = verbs.Find<ibv_device**(int*)>("ibv_get_device_list");
  auto* name = verbs.Find<const char*(ibv_device*)>("ibv_get_device_name");
  auto* free_list = verbs.Find<void(ibv_device**)>("ibv_free_device_list");
  facts.library = verbs.facts();
  if (!facts.library.opened) return facts;
  int count = 0;
  ibv_device** devices = list(&count);
  if (devices == nullptr) return facts;
  for (int i = 0; i < count; ++i) facts.device_names.emplace_back(name(devices[i]));
  free_list(devices);
  return facts;
}

void AskCudaLibrary(const std::string& library, GpuFacts* gpu) {
  Library cuda(library);
  auto* init = cuda.Find<int(unsigned)>("cuInit");
  auto* version = cuda.Find<int(int*)>("cuDriverGetVersion");
  auto* count_devices = cuda.Find<int(int*)>("cuDeviceGetCount");
  auto* get_device = cuda.Find<int(int*, int)>("cuDeviceGet");
  auto* get_name = cuda.Find<int(char*, int, int)>("cuDeviceGetName");
  auto* get_attribute = cuda.Find<int(int*, int, int)>("cuDeviceGetAttribute");
  gpu->library = cuda.facts();
  if (!gpu->library.opened) return;
  if (version(&gpu->driver_version) != kCudaSuccess) gpu->driver_version = 0;
  gpu->init_error = init(0);
  int count = 0;
  if (gpu->init_error != kCudaSuccess || count_devices(&count) != kCudaSuccess) return;
  for (int i = 0; i < count; ++i) {
    int device = 0, dma_buf = 0;
    std::array<char, kMaxGpuName> name = {};
    if (get_device(&device, i) != kCudaSuccess) continue;
    if (get_name(name.data(), name.size() - 1, device) != kCudaSuccess) name[0] = '\0';
    if (get_attribute(&dma_buf, kDmaBufSupported, device) != kCudaSuccess) dma_buf = 0;
    gpu->gpus.push_back({.name = name.data(), .dma_buf = dma_buf != 0});
  }
}

std::optional<FileSystemSize> SizeOf(const std::string& folder) {
  struct statvfs size = {};
  if (statvfs(folder.c_str(), &size) != 0) return std::nullopt;
  return FileSystemSize{.total_bytes = size.f_blocks * size.f_frsize,
                        .free_bytes = size.f_bavail * size.f_frsize};
}

int TryReadingMemory() {
  int from = 42, to = 0;
  const iovec source = {.iov_base = &from, .iov_len = sizeof from};
  const iovec target = {.iov_base = &to, .iov_len = sizeof to};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == sizeof from ? 0 : errno;
}

void AskClock(ClockFacts* clock) {
  timex state = {};
  const int result = adjtimex(&state);  // changes nothing
  if (result < 0) return;
  clock->synchronised = (state.status & STA_UNSYNC) == 0;
  clock->max_error_us = state.maxerror;
}

}  // namespace th::doctor
