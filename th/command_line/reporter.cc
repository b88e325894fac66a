#include "th/command_line/reporter.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

// Bytes that are not UTF-8 (a path, a peer's message) must not end the program.
std::string Dump(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PrintLine(FILE* out, const std::string& text) {
  fwrite(text.data(), 1, text.size(), out);
  if (text.empty() || text.back() != '\n') fputc('\n', out);
  fflush(out);
}

void PrintErrorObject(const absl::Status& status) {
  PrintLine(stdout, Dump({{"error",
                           {{"code", absl::StatusCodeToString(status.code())},
                            {"message", std::string(status.message())}}}}));
}

}  // namespace

OnUsageError UsageErrorAsJson(int argc, char** argv) {
  if (std::find(argv, argv + argc, std::string("--json")) == argv + argc) return nullptr;
  return [](const std::string& why) { PrintErrorObject(absl::InvalidArgumentError(why)); };
}

void Reporter::AddFlag(CLI::App* app) {
  app->add_flag("--json", json_, "end with one JSON object as the last line of stdout");
}

void Reporter::Report(const nlohmann::json& object, const std::string& text) const {
  reported_ = true;
  PrintLine(stdout, json_ ? Dump(object) : text);
}

ExitStatus Reporter::Fail(const absl::Status& status, ExitStatus exit) const {
  reported_ = true;
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string message(status.message());
  PrintLine(stderr, absl::StrCat("th: ", message.empty() ? code : message));
  if (json_) PrintErrorObject(status);
  return exit;
}

StopSignals Reporter::TakeSignals() const {
  const auto last_words = [this] {
    if (!reported_) Fail(absl::CancelledError("interrupted by a signal"));
  };
  return StopSignals(static_cast<int>(ExitStatus::kInterrupted), {.last_words = last_words});
}

}  // namespace th
