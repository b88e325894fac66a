// Where other people's programs are installed: ip, tc, iperf3.
//
//   TH_ASSIGN_OR_RETURN(const std::string ip, FindTool("ip"));
//
// Thread-safe as long as nobody changes the environment.
#ifndef TH_PROCESSES_SEARCH_PATH_H_
#define TH_PROCESSES_SEARCH_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// The program's path by the folders of `search_path` ("/usr/bin:/bin"). NOT_FOUND.
absl::StatusOr<std::string> FindInPath(absl::string_view program, absl::string_view search_path);

// By PATH, and then by the folders of the administrator's tools, which a plain user's PATH may
// lack. NOT_FOUND.
absl::StatusOr<std::string> FindTool(absl::string_view program);

}  // namespace th

#endif  // TH_PROCESSES_SEARCH_PATH_H_
