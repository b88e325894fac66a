#include "th/command_line/flag_values.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

std::string RefuseEmpty(std::string& text) {
  return text.empty() ? "has an empty value: give one, or leave it out" : "";
}

// The check of a flag that is only there or not: the library makes "true" of its being there.
std::string RefuseValue(std::string& text) {
  return text == "true" ? "" : absl::StrCat("takes no value: leave out =", text);
}

// strtoull would take 010 for 8, which nobody means who counts ranks.
std::string DropLeadingZeros(std::string& text) {
  const bool decimal = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (decimal) text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
  return "";
}

}  // namespace

void CheckEveryValue(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool takes_a_value = option->get_items_expected_max() > 0;
    if (!takes_a_value) {
      option->check(CLI::Validator(RefuseValue, ""));
      continue;
    }
    const std::string type = option->get_type_name();
    const bool integer = type.starts_with("INT") || type.starts_with("UINT");
    if (integer) option->transform(CLI::Validator(DropLeadingZeros, ""));
    option->transform(CLI::Validator(RefuseEmpty, ""));  // the last one added looks first
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    CheckEveryValue(*command);
  }
}

}  // namespace th
