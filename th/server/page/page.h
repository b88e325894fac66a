// The page that the server shows at /, one file of HTML that asks for /state.json once a second.
#ifndef TH_SERVER_PAGE_PAGE_H_
#define TH_SERVER_PAGE_PAGE_H_

#include "absl/strings/string_view.h"

namespace th {

absl::string_view PageForPeople();

}  // namespace th

#endif  // TH_SERVER_PAGE_PAGE_H_
