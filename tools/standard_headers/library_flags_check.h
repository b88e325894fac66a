#ifndef TOOLS_STANDARD_HEADERS_LIBRARY_FLAGS_CHECK_H_
#define TOOLS_STANDARD_HEADERS_LIBRARY_FLAGS_CHECK_H_

namespace th {

// True when this library was compiled with precompiled headers. A debug build has none.
bool LibraryHadPrecompiledHeaders();

}  // namespace th

#endif  // TOOLS_STANDARD_HEADERS_LIBRARY_FLAGS_CHECK_H_
