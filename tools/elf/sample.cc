// A C interface over C++, to test the rules of this folder with.

#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace th {

// Would leak out of a shared object that is linked without care.
std::string JoinedOnAnotherThread(int number) {
  std::string text;
  std::thread([&] { text = absl::StrCat("sample ", number); }).join();
  return text;
}

}  // namespace th

extern "C" __attribute__((visibility("default"))) int sample_text(int number, char* out,
                                                                  int out_bytes) {
  try {
    const std::string text = th::JoinedOnAnotherThread(number);
    std::strncpy(out, text.c_str(), static_cast<size_t>(out_bytes));
    return static_cast<int>(text.size());
  } catch (const std::exception&) {
    return -1;
  }
}
