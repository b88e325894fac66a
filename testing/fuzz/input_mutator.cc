#include "testing/fuzz/input_mutator.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace th::testing {
namespace {

constexpr size_t kMaxChanges = 8;
constexpr size_t kMaxRunBytes = 64;

// Where decoders' arithmetic tends to go wrong.
constexpr uint64_t kRevealingNumbers[] = {
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fffffff,
    0x80000000,
    0xffffffff,
    uint64_t{1} << 32,
    1 << 20,
    100'000'000,
    uint64_t{1} << 62,
    uint64_t{1} << 63,
    ~uint64_t{0},
    ~uint64_t{0} - 7,
};

constexpr char kRevealingBytes[] = "{}[]\",:.\\/#%=-0919\x01\x7f\x80\xc0\xed\xff";

}  // namespace

InputMutator::InputMutator(std::vector<std::string> corpus, uint32_t seed)
    : corpus_(std::move(corpus)), random_(seed) {}

std::string InputMutator::Mutate(std::string input) {
  for (size_t changes = 1 + Below(kMaxChanges); changes > 0; --changes) ChangeOnce(input);
  input.resize(std::min(input.size(), kMaxMutatedBytes));
  return input;
}

void InputMutator::ChangeOnce(std::string& input) {
  if (input.empty()) return Splice(input);
  const size_t at = Below(input.size());
  const size_t run = 1 + Below(std::min(input.size() - at, kMaxRunBytes));
  switch (Below(8)) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
      break;
    case 1:
      input[at] = kRevealingBytes[Below(sizeof(kRevealingBytes))];
      break;
    case 2:
      input[at] = static_cast<char>(Below(256));
      break;
    case 3:
      input.resize(at);
      break;
    case 4:
      input.erase(at, run);
      break;
    case 5:
      input.insert(Below(input.size()), input.substr(at, run));
      break;
    case 6:
      ReplaceNumber(input);
      break;
    default:
      Splice(input);
      break;
  }
}

// In eight little-endian bytes, or in place of a run of digits.
void InputMutator::ReplaceNumber(std::string& input) {
  uint64_t number = kRevealingNumbers[Below(std::size(kRevealingNumbers))];
  const size_t digits = input.find_first_of("0123456789", Below(input.size()));
  if (digits != std::string::npos && Below(2) == 0) {
    const size_t end = input.find_first_not_of("0123456789", digits);
    const size_t count = (end == std::string::npos ? input.size() : end) - digits;
    input.replace(digits, count, std::to_string(number));
    return;
  }
  for (size_t at = Below(input.size()), i = 0; i < 8 && at < input.size(); ++i, ++at) {
    input[at] = static_cast<char>(number);
    number >>= 8;
  }
}

void InputMutator::Splice(std::string& input) {
  const std::string& other = corpus_[Below(corpus_.size())];
  if (other.empty()) return;
  const size_t from = Below(other.size());
  const size_t run = 1 + Below(std::min(other.size() - from, kMaxRunBytes));
  input.insert(Below(input.size() + 1), other, from, run);
}

size_t InputMutator::Below(size_t limit) { return random_() % limit; }

}  // namespace th::testing
