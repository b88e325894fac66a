#include "th/memory/cuda/driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr absl::string_view kRemedy =
    "GPU memory cannot be used. Install NVIDIA's driver, or give the container access to the GPU "
    "and its driver "
    "(nvidia-container-toolkit)";

std::string NameOf(const CudaDriver& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  return absl::StrCat(name, " (", static_cast<int>(result), ")");
}

template <typename Function>
absl::Status Find(void* library, const char* name, absl::string_view path, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, " has no function ", name,
                   ": the CUDA driver is too old, and GPU memory cannot be used. Update it to 470 "
                   "(CUDA 11.4) or a later one"));
}

absl::StatusOr<std::unique_ptr<CudaDriver>> Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("there is no CUDA driver (", dlerror(), "): ", kRemedy));
  }
  auto driver = std::make_unique<CudaDriver>();
  driver->path = path;
  // The header names a function's version by a macro: the name that is looked up is the one that is
  // called.
#define TH_CUDA_NAME(function) #function
#define TH_CUDA_FIND(member, function) \
  TH_RETURN_IF_ERROR(Find(library, TH_CUDA_NAME(function), path, &driver->member));
  TH_CUDA_FUNCTIONS(TH_CUDA_FIND)
#undef TH_CUDA_FIND
#define TH_CUDA_FIND_LATER(member, function) \
  driver->member =                           \
      reinterpret_cast<decltype(driver->member)>(dlsym(library, TH_CUDA_NAME(function)));
  TH_CUDA_LATER_FUNCTIONS(TH_CUDA_FIND_LATER)
#undef TH_CUDA_FIND_LATER
#undef TH_CUDA_NAME
  const CUresult started = driver->Init(0);
  if (started == CUDA_SUCCESS) return driver;
  return absl::UnavailableError(absl::StrCat("the CUDA driver ", path, " does not start: cuInit: ",
                                             NameOf(*driver, started), ". ", kRemedy));
}

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
      return absl::StatusCode::kInvalidArgument;
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_FOUND:
      return absl::StatusCode::kNotFound;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Load(absl::string_view path) {
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  static auto* const loaded = new std::map<std::string, std::unique_ptr<CudaDriver>>();
  const absl::MutexLock lock(&mu);
  std::unique_ptr<CudaDriver>& driver = (*loaded)[std::string(path)];
  if (driver == nullptr) {
    TH_ASSIGN_OR_RETURN(driver, Open(std::string(path)));
  }
  return driver.get();
}

bool CudaDriver::IsLoaded(absl::string_view path) {
  void* const library = dlopen(std::string(path).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);  // gives back the count of this call alone
  return true;
}

absl::Status CudaStatus(const CudaDriver& driver, CUresult result, absl::string_view what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::Status(CodeOf(result), absl::StrCat("cannot ", what, ": ", NameOf(driver, result)));
}

}  // namespace th
