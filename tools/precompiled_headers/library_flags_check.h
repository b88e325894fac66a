#ifndef TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_
#define TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_

namespace th {

// The headers that a file had before it included any. A debug build has none.
struct PrecompiledHeaders {
  bool standard_library = false;
  bool abseil = false;
};

// Returns the headers that this library had. It is compiled with the flags of all libraries.
PrecompiledHeaders LibraryHeaders();

}  // namespace th

#endif  // TOOLS_PRECOMPILED_HEADERS_LIBRARY_FLAGS_CHECK_H_
