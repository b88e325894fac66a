#include "tools/precompiled_headers/library_flags_check.h"

namespace th {

PrecompiledHeaders LibraryHeaders() {
  PrecompiledHeaders headers;
#ifdef TH_HEADERS_ARE_PRECOMPILED
  headers.standard_library = true;
#endif
#ifdef ABSL_STATUS_STATUS_H_
  headers.abseil = true;
#endif
  return headers;
}

}  // namespace th
