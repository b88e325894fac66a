// Stands in for CUDA's driver library: two GPUs, the second without DMA-BUF. The variable
// STUB_CUDA_INIT_ERROR makes cuInit fail.
#include <cstdio>
#include <cstdlib>

extern "C" {

int cuInit(unsigned) {
  const char* error = getenv("STUB_CUDA_INIT_ERROR");
  return error == nullptr ? 0 : atoi(error);
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, static_cast<size_t>(size), "Stub GPU %d", device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int kDmaBufSupported = 124;
  if (attribute != kDmaBufSupported) return 1;
  *value = device == 0 ? 1 : 0;
  return 0;
}

}  // extern "C"
