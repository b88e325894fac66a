#include "th/worker/reader_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "th/command_line/quantity.h"

namespace th {

std::string DescribeReader(const std::string& rank, const ReaderReport& report) {
  std::string text =
      absl::StrCat(rank, ": reader ", report.reader.value, " of #", report.version.ToString(), " ");
  switch (report.what) {
    case ReaderReport::What::kAdmitted:
      absl::StrAppend(&text, "admitted");
      break;
    case ReaderReport::What::kRefused:
      absl::StrAppend(&text, "refused: ", std::string(report.refusal.message()));
      break;
    case ReaderReport::What::kReleased:
      absl::StrAppend(&text, "let go after ", FormatBytes(report.bytes_sent));
      if (!report.why_ended.empty()) absl::StrAppend(&text, ": ", report.why_ended);
      break;
  }
  return absl::StrCat(text, EventSuffix(report.event));
}

std::function<void(const ReaderReport&)> LogReaders(std::string rank) {
  return [rank = std::move(rank)](const ReaderReport& report) {
    LOG(INFO) << DescribeReader(rank, report);
  };
}

void LogLeftOut(const Client& client) {
  for (const std::string& line : client.left_out()) LOG(INFO) << "not used: " << line;
}

}  // namespace th
