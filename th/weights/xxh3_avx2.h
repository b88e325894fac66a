// XXH3-128 as xxhash.h has it, compiled for AVX2: the same sums, about twice as fast as for SSE2.
#ifndef TH_WEIGHTS_XXH3_AVX2_H_
#define TH_WEIGHTS_XXH3_AVX2_H_

#include <stddef.h>
#include <stdint.h>

// C names and no C++ header: nothing that this file's compilation for AVX2 could share with others.
extern "C" {

// Only where this is not 0 may the others be called.
int th_xxh3_avx2_usable(void);
// `hash` is an XXH128_hash_t.
void th_xxh3_avx2_sum(const void* data, size_t bytes, void* hash);
// `state` is an XXH3_state_t that XXH3_128bits_reset has made ready.
void th_xxh3_avx2_update(void* state, const void* data, size_t bytes);

}  // extern "C"

#endif  // TH_WEIGHTS_XXH3_AVX2_H_
