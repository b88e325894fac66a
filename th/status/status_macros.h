// Early return on an error status, for code without exceptions.
//
//   TH_RETURN_IF_ERROR(buffer.Publish("step-57"));
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<th::Client> hub, th::Client::Join(options));
#ifndef TH_STATUS_STATUS_MACROS_H_
#define TH_STATUS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TH_RETURN_IF_ERROR(expression)                                              \
  do {                                                                              \
    if (::absl::Status th_status = (expression); !th_status.ok()) return th_status; \
  } while (false)

#define TH_STATUS_CONCAT_INNER_(a, b) a##b
#define TH_STATUS_CONCAT_(a, b) TH_STATUS_CONCAT_INNER_(a, b)
#define TH_ASSIGN_OR_RETURN(declaration, expression) \
  TH_ASSIGN_OR_RETURN_(TH_STATUS_CONCAT_(th_status_or_, __LINE__), declaration, expression)
#define TH_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return std::move(result).status();        \
  declaration = *std::move(result)

#endif  // TH_STATUS_STATUS_MACROS_H_
