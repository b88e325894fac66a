// Values that wait under small numbers: what refers to one of them is a number, which a heap or a
// callback moves about for less than the value.
//
//   Slots<std::string> waiting;
//   const size_t slot = waiting.Put("text");
//   ... waiting.Take(slot)                    // once; the number may then name another value
//
// Not thread-safe.
#ifndef TH_SIMULATOR_SLOTS_H_
#define TH_SIMULATOR_SLOTS_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace th {

template <typename T>
class Slots {
 public:
  size_t Put(T value) {
    if (free_.empty()) {
      values_.push_back(std::move(value));
      return values_.size() - 1;
    }
    const size_t slot = free_.back();
    free_.pop_back();
    values_[slot] = std::move(value);
    return slot;
  }
  T Take(size_t slot) {
    free_.push_back(slot);
    return std::move(values_[slot]);
  }

 private:
  std::vector<T> values_;
  std::vector<size_t> free_;
};

}  // namespace th

#endif  // TH_SIMULATOR_SLOTS_H_
