#include "th/weights/xxh3_avx2.h"

#include "xxhash.h"

extern "C" {

int th_xxh3_avx2_usable(void) {
#ifdef __AVX2__
  return __builtin_cpu_supports("avx2");
#else
  return 0;
#endif
}

void th_xxh3_avx2_sum(const void* data, size_t bytes, void* hash) {
  *static_cast<XXH128_hash_t*>(hash) = XXH3_128bits(data, bytes);
}

void th_xxh3_avx2_update(void* state, const void* data, size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}

}  // extern "C"
