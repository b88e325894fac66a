// The contract's transition table as data: what each event does in each state. Drawn in
// docs/protocol/contract.md; a test compares the two.
#ifndef TH_MUTABILITY_CONTRACT_TRANSITIONS_H_
#define TH_MUTABILITY_CONTRACT_TRANSITIONS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace th {

enum class BufferState : uint8_t { kWritable, kPublished, kDraining, kFilling, kUndefined };
inline constexpr BufferState kAllBufferStates[] = {BufferState::kWritable, BufferState::kPublished,
                                                   BufferState::kDraining, BufferState::kFilling,
                                                   BufferState::kUndefined};
absl::string_view BufferStateName(BufferState state);

enum class BufferEvent : uint8_t {
  kPublish,
  kUnpublish,
  kBeginUpdate,
  kDrained,
  kFilled,
  kFillFailed,
  kReset,
};
inline constexpr BufferEvent kAllBufferEvents[] = {
    BufferEvent::kPublish, BufferEvent::kUnpublish, BufferEvent::kBeginUpdate,
    BufferEvent::kDrained, BufferEvent::kFilled,    BufferEvent::kFillFailed,
    BufferEvent::kReset};
absl::string_view BufferEventName(BufferEvent event);

// When one of several transitions of a state and event applies. Exactly one holds at a time.
enum class BufferCondition : uint8_t {
  kAlways,
  kNoReader,              // nobody reads
  kReadersOfSameVersion,  // readers in flight, of the very version that is asked for
  kReaders,               // readers in flight (kBeginUpdate: of another version)
  kForUnpublish,          // the drain was asked by unpublish or reset
  kForUpdate,             // the drain was asked by an update
  kWrote,                 // the fill has written
  kUntouchedPublished,    // not written, and a version was published before
  kUntouchedUndefined,    // not written, and the buffer was undefined before
  kUntouchedWritable,     // not written, and the buffer was writable before
};
absl::string_view BufferConditionName(BufferCondition condition);

struct BufferTransition {
  BufferState from;
  BufferEvent event;
  BufferCondition condition;
  BufferState to;
  bool new_generation;  // the generation word rises
};

// Every allowed transition; what is not listed is refused.
const std::vector<BufferTransition>& BufferTransitions();
// The transition for (from, event, condition); a listed kAlways matches every condition. Null:
// refused.
const BufferTransition* FindBufferTransition(BufferState from, BufferEvent event,
                                             BufferCondition condition);
// True when `event` is allowed in `from` under any condition.
bool BufferEventAllowed(BufferState from, BufferEvent event);

}  // namespace th

#endif  // TH_MUTABILITY_CONTRACT_TRANSITIONS_H_
