#include "th/monitoring/host_name.h"

#include <unistd.h>

#include <array>

namespace th {

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "";
}

}  // namespace th
