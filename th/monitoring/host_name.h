// The name of this host, for people.
#ifndef TH_MONITORING_HOST_NAME_H_
#define TH_MONITORING_HOST_NAME_H_

#include <string>

namespace th {

// As gethostname says it; empty where that fails.
std::string HostName();

}  // namespace th

#endif  // TH_MONITORING_HOST_NAME_H_
