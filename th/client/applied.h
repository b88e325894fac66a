// Which groups hold a version whole, as the server lists them: what Controller::WaitApplied looks
// at. Pure.
#ifndef TH_CLIENT_APPLIED_H_
#define TH_CLIENT_APPLIED_H_

#include <string>
#include <vector>

#include "th/client/client.h"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// The result for `groups`, in their order. `model` null: the server knows no such model. Nobody
// counts while the server is `recovering`: of a group that has come back, some ranks may have.
AppliedResult FindApplied(const CatalogModel* model, bool recovering, const VersionInfo& version,
                          const std::vector<std::string>& groups);

}  // namespace th

#endif  // TH_CLIENT_APPLIED_H_
