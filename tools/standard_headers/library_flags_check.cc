#include "tools/standard_headers/library_flags_check.h"

namespace th {

bool LibraryHadPrecompiledHeaders() {
#ifdef TH_STANDARD_HEADERS_ARE_PRECOMPILED
  return true;
#else
  return false;
#endif
}

}  // namespace th
