// libstdc++'s std::random_device calls arc4random, which glibc has since 2.36; its static library would therefore
// bind every C++ binary to that version. This one is put into the archive beside its caller.
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) abort();  // as glibc's own does
  return value;
}
