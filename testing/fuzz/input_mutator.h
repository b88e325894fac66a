// Makes hostile inputs out of good ones, the same ones for the same seed.
#ifndef TESTING_FUZZ_INPUT_MUTATOR_H_
#define TESTING_FUZZ_INPUT_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace th::testing {

// The most bytes that a mutated input grows to.
inline constexpr size_t kMaxMutatedBytes = size_t{1} << 20;

// Not thread-safe.
class InputMutator {
 public:
  // `corpus` is what splices are taken from.
  InputMutator(std::vector<std::string> corpus, uint32_t seed);

  // `input` after one to eight changes: bits flipped, bytes and numbers replaced, runs cut out,
  // repeated or taken from elsewhere in the corpus, the end cut off.
  std::string Mutate(std::string input);

 private:
  void ChangeOnce(std::string& input);
  void ReplaceNumber(std::string& input);
  void Splice(std::string& input);
  size_t Below(size_t limit);  // `limit` > 0

  const std::vector<std::string> corpus_;
  std::mt19937 random_;
};

}  // namespace th::testing

#endif  // TESTING_FUZZ_INPUT_MUTATOR_H_
