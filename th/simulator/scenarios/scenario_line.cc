#include "th/simulator/scenarios/scenario_line.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace th {
namespace {

// Larger quantities are mistakes: an exabyte, or thirty years.
constexpr double kMostQuantity = 1e18;
constexpr double kMostSeconds = 1e9;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxQuoted = 60;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), IsNameCharacter);
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxQuoted)),
                      text.size() > kMaxQuoted ? "..." : "", "'");
}

}  // namespace

ScenarioLine::ScenarioLine(std::string file, int number, absl::string_view text,
                           const Variables& variables)
    : file_(std::move(file)), number_(number) {
  Split(text.substr(0, text.find('#')), variables);
}

void ScenarioLine::Fail(absl::string_view reason) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(file_, ":", number_, ": ", reason));
  }
}

void ScenarioLine::Split(absl::string_view text, const Variables& variables) {
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos || equals == 0) {
      words_.push_back(Substitute(part, variables));
      continue;
    }
    const std::string key(part.substr(0, equals));
    const bool first =
        fields_.emplace(key, Field{Substitute(part.substr(equals + 1), variables)}).second;
    if (!first) Fail(absl::StrCat("the key ", Quoted(key), " is given twice"));
  }
}

std::string ScenarioLine::Substitute(absl::string_view text, const Variables& variables) {
  if (text.empty() || text.front() != '$') return std::string(text);
  const auto found = variables.find(std::string(text.substr(1)));
  if (found != variables.end()) return found->second;
  Fail(absl::StrCat("nothing is let be ", Quoted(text), " above this line"));
  return "";
}

// ---- words

std::string ScenarioLine::Word(absl::string_view what) {
  if (HasWord()) return words_[next_word_++];
  Fail(absl::StrCat(what, " is missing"));
  return "";
}

std::string ScenarioLine::Name(absl::string_view what) {
  std::string name = Word(what);
  if (!IsName(name)) {
    Fail(absl::StrCat(what, " ", Quoted(name), " is not a name of at most ", kMaxNameBytes,
                      " letters, digits, '-', '_' and '.'"));
  }
  return name;
}

absl::Duration ScenarioLine::TimeWord(absl::string_view what) { return ToTime(what, Word(what)); }

uint32_t ScenarioLine::CountWord(absl::string_view what, uint32_t most) {
  return ToCount(what, Word(what), most);
}

size_t ScenarioLine::Choice(absl::string_view what,
                            std::initializer_list<absl::string_view> choices) {
  return PlaceOf(what, Word(what), choices);
}

// ---- fields

void ScenarioLine::NoteKnown(absl::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
}

bool ScenarioLine::Has(absl::string_view key) {
  NoteKnown(key);
  return fields_.contains(std::string(key));
}

const std::string* ScenarioLine::Find(absl::string_view key, bool optional) {
  NoteKnown(key);
  const auto found = fields_.find(std::string(key));
  if (found != fields_.end()) {
    found->second.asked = true;
    return &found->second.value;
  }
  if (!optional) Fail(absl::StrCat("the key '", key, "' is missing"));
  return nullptr;
}

std::string ScenarioLine::Text(absl::string_view key, std::optional<std::string> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or("");
  if (value->empty()) Fail(absl::StrCat("'", key, "' is empty"));
  return *value;
}

size_t ScenarioLine::Choice(absl::string_view key, std::initializer_list<absl::string_view> choices,
                            std::optional<size_t> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  return value == nullptr ? otherwise.value_or(0) : PlaceOf(key, *value, choices);
}

uint64_t ScenarioLine::Bytes(absl::string_view key, std::optional<uint64_t> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(1);
  const double bytes = ToQuantity(key, *value,
                                  {{"B", 1},
                                   {"KB", 1e3},
                                   {"MB", 1e6},
                                   {"GB", 1e9},
                                   {"TB", 1e12},
                                   {"KiB", 1024.0},
                                   {"MiB", 1048576.0},
                                   {"GiB", 1073741824.0},
                                   {"TiB", 1099511627776.0}});
  if (bytes < 1) Fail(absl::StrCat("'", key, "' must be at least 1B"));
  return static_cast<uint64_t>(std::max(bytes, 1.0));
}

double ScenarioLine::Rate(absl::string_view key, std::optional<double> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(1);
  const double rate = ToQuantity(key, *value,
                                 {{"B/s", 1},
                                  {"KB/s", 1e3},
                                  {"MB/s", 1e6},
                                  {"GB/s", 1e9},
                                  {"TB/s", 1e12},
                                  {"KiB/s", 1024.0},
                                  {"MiB/s", 1048576.0},
                                  {"GiB/s", 1073741824.0},
                                  {"Kbps", 1e3 / 8},
                                  {"Mbps", 1e6 / 8},
                                  {"Gbps", 1e9 / 8},
                                  {"Tbps", 1e12 / 8}});
  if (rate < 1) Fail(absl::StrCat("'", key, "' must be at least 1B/s"));
  return std::max(rate, 1.0);
}

absl::Duration ScenarioLine::Time(absl::string_view key, std::optional<absl::Duration> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  return value == nullptr ? otherwise.value_or(absl::ZeroDuration()) : ToTime(key, *value);
}

double ScenarioLine::Fraction(absl::string_view key, std::optional<double> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(1);
  const double fraction = ToQuantity(key, *value, {{"%", 0.01}});
  if (fraction > 1) Fail(absl::StrCat("'", key, "' is more than 100%"));
  return fraction;
}

uint32_t ScenarioLine::Count(absl::string_view key, uint32_t most,
                             std::optional<uint32_t> otherwise) {
  const std::string* value = Find(key, otherwise.has_value());
  return value == nullptr ? otherwise.value_or(1) : ToCount(key, *value, most);
}

std::map<std::string, std::string> ScenarioLine::AllFields() {
  std::map<std::string, std::string> all;
  for (auto& [key, field] : fields_) {
    if (!IsName(key)) Fail(absl::StrCat("the key ", Quoted(key), " is not a name"));
    if (field.value.empty()) Fail(absl::StrCat("'", key, "' is empty"));
    field.asked = true;
    all[key] = field.value;
  }
  return all;
}

// ---- values

size_t ScenarioLine::PlaceOf(absl::string_view what, const std::string& word,
                             std::initializer_list<absl::string_view> choices) {
  const auto* const found = std::find(choices.begin(), choices.end(), word);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  Fail(absl::StrCat(what, " ", Quoted(word), " is unknown; known: ", absl::StrJoin(choices, ", ")));
  return 0;
}

uint32_t ScenarioLine::ToCount(absl::string_view what, const std::string& text, uint32_t most) {
  uint32_t count = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(text, &count) && count >= 1 && count <= most) return count;
  Fail(absl::StrCat(what, " ", Quoted(text), " is not a whole number from 1 to ", most));
  return 1;
}

absl::Duration ScenarioLine::ToTime(absl::string_view what, const std::string& text) {
  const double seconds =
      ToQuantity(what, text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}});
  if (seconds > kMostSeconds) Fail(absl::StrCat(what, " ", Quoted(text), " is too long"));
  return absl::Seconds(std::min(seconds, kMostSeconds));
}

double ScenarioLine::ToQuantity(absl::string_view what, const std::string& text,
                                std::initializer_list<Unit> units) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  if (end == 0 || !absl::SimpleAtod(text.substr(0, end), &number)) {
    Fail(absl::StrCat(what, " ", Quoted(text), " is not a number with a unit"));
    return 0;
  }
  const absl::string_view unit = absl::string_view(text).substr(end);
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    const double quantity = number * known.factor;
    if (std::isfinite(quantity) && quantity <= kMostQuantity) return quantity;
    Fail(absl::StrCat(what, " ", Quoted(text), " is too large"));
    return 0;
  }
  const std::string names = absl::StrJoin(
      units, ", ", [](std::string* out, const Unit& known) { absl::StrAppend(out, known.name); });
  Fail(unit.empty() ? absl::StrCat(what, " ", Quoted(text), " needs a unit: ", names)
                    : absl::StrCat(what, " ", Quoted(text), " has the unknown unit ", Quoted(unit),
                                   "; known: ", names));
  return 0;
}

absl::Status ScenarioLine::Finish() {
  if (HasWord()) Fail(absl::StrCat(Quoted(words_[next_word_]), " is too much here"));
  for (const auto& [key, field] : fields_) {
    if (field.asked) continue;
    Fail(absl::StrCat("the key ", Quoted(key), " is unknown; known: ",
                      known_.empty() ? "none here" : absl::StrJoin(known_, ", ")));
  }
  return status_;
}

}  // namespace th
