// The headers that our files use most, precompiled for all of them (gcc.BUILD). An edit recompiles everything, also other
// people's code. No file may rely on having them from here: tools/lint reads what ships without them.
//
// A header that few files include costs more than it saves: gcc instantiates at the end of each file the templates that inline
// functions of all precompiled headers call. Nineteen such headers (streams, threads, <filesystem>, the joining and formatting of
// strings) took a third of an empty file's time, and 6 % of 24 files drawn by chance.
#define TH_HEADERS_ARE_PRECOMPILED 1

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// A workspace that brings an Abseil or a GoogleTest of its own has none of them here (repositories.bzl).
#if __has_include("absl/status/status.h")
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#endif

// Tests alone are compiled unoptimised.
#if !defined(__OPTIMIZE__) && __has_include("gmock/gmock.h")
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#endif
