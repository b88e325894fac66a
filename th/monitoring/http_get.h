// One HTTP exchange, for tests.
#ifndef TH_MONITORING_HTTP_GET_H_
#define TH_MONITORING_HTTP_GET_H_

#include <string>

namespace th {

// A connection to "127.0.0.1:PORT". -1: refused.
int ConnectSocket(const std::string& address);
// Sends `request` as it is, says that nothing follows, and returns everything that comes back.
std::string HttpExchange(const std::string& address, const std::string& request);
// The whole response to GET `path`.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace th

#endif  // TH_MONITORING_HTTP_GET_H_
