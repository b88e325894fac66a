#ifndef TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_
#define TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_

namespace th {

// Which headers a file had before it included any. A debug build has none.
struct PrecompiledHeaders {
  bool standard_library = false;
  bool abseil = false;
};

// Those of this library, which has the flags of all libraries.
PrecompiledHeaders LibraryHeaders();

}  // namespace th

#endif  // TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_
