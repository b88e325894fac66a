#include "th/server/page/page.h"

namespace th {
namespace {

constexpr char kPage[] =
#include "th/server/page/page.html.inc"
    ;

}  // namespace

absl::string_view PageForPeople() { return absl::string_view(kPage, sizeof(kPage) - 1); }

}  // namespace th
