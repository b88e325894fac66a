#ifndef TH_STANDARD_HEADERS_ARE_COMPILED
#error "no file of standard.h.gch fits the flags of libraries: compare gcc.BUILD with .bazelrc"
#endif

namespace th {

/** Called by standard_headers_test, so that this file is compiled with it. */
bool StandardHeadersAreCompiled() { return true; }

}  // namespace th
