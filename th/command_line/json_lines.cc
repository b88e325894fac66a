#include "th/command_line/json_lines.h"

#include <unistd.h>

#include <cerrno>

namespace th {
namespace {

absl::StatusCode CodeOfName(const std::string& name) {
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const auto status_code = static_cast<absl::StatusCode>(code);
    if (absl::StatusCodeToString(status_code) == name) return status_code;
  }
  return absl::StatusCode::kUnknown;
}

std::string TextOr(const nlohmann::json& object, const char* key, const char* otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace

nlohmann::json ErrorToJson(const absl::Status& status) {
  return {{"error",
           {{"code", absl::StatusCodeToString(status.code())},
            {"message", std::string(status.message())}}}};
}

absl::Status StatusOfAnswer(const nlohmann::json& answer) {
  if (!answer.is_object()) return absl::InternalError("an answer that is no JSON object");
  const auto error = answer.find("error");
  if (error == answer.end()) return absl::OkStatus();
  if (!error->is_object()) return absl::UnknownError(error->dump());
  const std::string message = TextOr(*error, "message", "");
  const absl::StatusCode code = CodeOfName(TextOr(*error, "code", ""));
  return {code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code, message};
}

nlohmann::json ParseLine(absl::string_view line) {
  nlohmann::json parsed =
      nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  return nlohmann::json(nlohmann::json::value_t::discarded);
}

bool JsonLineWriter::Write(const nlohmann::json& object) {
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  absl::MutexLock lock(&mutex_);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd_, text.data() + done, text.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace th
