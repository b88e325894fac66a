#include "th/doctor/host_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace th::doctor {
namespace {

// Most files have a line, and a device with a thousand addresses has two thousand files.
constexpr size_t kPieceBytes = 4096;

}  // namespace

std::string HostFiles::OnDisk(absl::string_view path) const { return absl::StrCat(root_, path); }

std::string HostFiles::Content(absl::string_view path) const {
  std::ifstream file(OnDisk(path), std::ios::binary);
  std::string content;
  std::array<char, kPieceBytes> piece;
  // A file of sysfs may open and then refuse to be read: that leaves nothing.
  while (content.size() < kMaxBytes &&
         (file.read(piece.data(), piece.size()) || file.gcount() > 0)) {
    content.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  return std::string(absl::StripAsciiWhitespace(content));
}

std::string HostFiles::Line(absl::string_view path) const {
  const std::string content = Content(path);
  return content.substr(0, content.find('\n'));
}

std::optional<uint64_t> HostFiles::Number(absl::string_view path) const {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(Line(path), &number)) return std::nullopt;
  return number;
}

std::vector<std::string> HostFiles::Names(absl::string_view folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator each(OnDisk(folder), error), end; !error && each != end;
       each.increment(error)) {
    names.push_back(each->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string HostFiles::LinkName(absl::string_view path) const {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(OnDisk(path), error);
  return error ? "" : target.filename().string();
}

bool HostFiles::Exists(absl::string_view path) const {
  return access(OnDisk(path).c_str(), F_OK) == 0;
}

bool HostFiles::Usable(absl::string_view path) const {
  return access(OnDisk(path).c_str(), R_OK | W_OK) == 0;
}

}  // namespace th::doctor
