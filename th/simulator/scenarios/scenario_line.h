// One statement of a scenario file: its words, its key=value fields, and quantities with their
// units. The first thing that is wrong is kept, with the line; what is asked for after that has
// some valid value, so a statement is read straight through and asked once in the end.
//
//   ScenarioLine line("web.scenario", 12, "host h1 up=25GB/s  # fast", {});
//   const std::string name = line.Word("the host's name");
//   const double up = line.Rate("up");
//   TH_RETURN_IF_ERROR(line.Finish());   // also: nothing else stood there
//
// Values: bytes "512KiB", "62.5GB" (a unit is needed: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB); rates
// "25GB/s", "10Gbps" (bits); times "20us", "5ms", "2.5s", "3min", "1h"; fractions "10%"; counts
// "16". "$name" stands for what a `let` gave it. Not thread-safe.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_LINE_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_LINE_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

class ScenarioLine {
 public:
  using Variables = std::map<std::string, std::string>;
  ScenarioLine(std::string file, int number, absl::string_view text, const Variables& variables);

  bool blank() const { return words_.empty() && fields_.empty() && status_.ok(); }
  // Keeps "file:line: reason" unless something was wrong before.
  void Fail(absl::string_view reason);
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  int number() const { return number_; }

  // ---- words, one after the other; `what` says in an error what is missing
  bool HasWord() const { return next_word_ < words_.size(); }
  std::string Word(absl::string_view what);
  std::string Name(absl::string_view what);  // letters, digits, '-', '_', '.'
  absl::Duration TimeWord(absl::string_view what);
  uint32_t CountWord(absl::string_view what, uint32_t most);
  // The place of the word among `choices`.
  size_t Choice(absl::string_view what, std::initializer_list<absl::string_view> choices);

  // ---- fields; without `otherwise` they are needed
  bool Has(absl::string_view key);
  std::string Text(absl::string_view key, std::optional<std::string> otherwise = {});
  size_t Choice(absl::string_view key, std::initializer_list<absl::string_view> choices,
                std::optional<size_t> otherwise);
  uint64_t Bytes(absl::string_view key, std::optional<uint64_t> otherwise = {});
  double Rate(absl::string_view key, std::optional<double> otherwise = {});
  absl::Duration Time(absl::string_view key, std::optional<absl::Duration> otherwise = {});
  double Fraction(absl::string_view key, std::optional<double> otherwise = {});
  uint32_t Count(absl::string_view key, uint32_t most, std::optional<uint32_t> otherwise = {});

  // All fields, whatever their keys, each a word.
  std::map<std::string, std::string> AllFields();

  // The first thing that is wrong: also a word or a field that nobody asked for.
  absl::Status Finish();

 private:
  struct Field {
    std::string value;
    bool asked = false;
  };

  void Split(absl::string_view text, const Variables& variables);
  void NoteKnown(absl::string_view key);  // for the error of a key that is not
  std::string Substitute(absl::string_view text, const Variables& variables);
  // Null: the field is not there; said unless `optional`.
  const std::string* Find(absl::string_view key, bool optional);
  size_t PlaceOf(absl::string_view what, const std::string& word,
                 std::initializer_list<absl::string_view> choices);
  uint32_t ToCount(absl::string_view what, const std::string& text, uint32_t most);
  absl::Duration ToTime(absl::string_view what, const std::string& text);
  // `text` as a number with one of `units`, times its factor; 0 and an error otherwise.
  struct Unit {
    absl::string_view name;
    double factor;
  };
  double ToQuantity(absl::string_view what, const std::string& text,
                    std::initializer_list<Unit> units);

  const std::string file_;
  const int number_;
  absl::Status status_;
  std::vector<std::string> words_;
  size_t next_word_ = 0;
  std::map<std::string, Field> fields_;
  std::vector<std::string> known_;  // keys that were asked for, for errors
};

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_LINE_H_
