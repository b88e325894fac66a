// How many files this process has open: what a test of leaks compares.
#ifndef TESTING_OPEN_DESCRIPTORS_H_
#define TESTING_OPEN_DESCRIPTORS_H_

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace th::testing {

// The one through which they are counted is among them.
inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

}  // namespace th::testing

#endif  // TESTING_OPEN_DESCRIPTORS_H_
