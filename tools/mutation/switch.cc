#include "tools/mutation/switch.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace th {

bool MutationIsOn(std::string_view name) { return name == MutationInForce(); }

std::string_view MutationInForce() {
  static const std::string& name = *[] {
    const char* const value = std::getenv("TH_MUTATION");
    return new std::string(value == nullptr ? "" : value);
  }();
  return name;
}

}  // namespace th
