#include "th/mutability_contract/transitions.h"

#include <algorithm>

#include "tools/mutation/mutation.h"

namespace th {

absl::string_view BufferStateName(BufferState state) {
  switch (state) {
    case BufferState::kWritable:
      return "writable";
    case BufferState::kPublished:
      return "published";
    case BufferState::kDraining:
      return "draining";
    case BufferState::kFilling:
      return "filling";
    case BufferState::kUndefined:
      return "undefined";
  }
  return "unknown";
}

absl::string_view BufferEventName(BufferEvent event) {
  switch (event) {
    case BufferEvent::kPublish:
      return "publish";
    case BufferEvent::kUnpublish:
      return "unpublish";
    case BufferEvent::kBeginUpdate:
      return "begin_update";
    case BufferEvent::kDrained:
      return "drained";
    case BufferEvent::kFilled:
      return "filled";
    case BufferEvent::kFillFailed:
      return "fill_failed";
    case BufferEvent::kReset:
      return "reset";
  }
  return "unknown";
}

absl::string_view BufferConditionName(BufferCondition condition) {
  switch (condition) {
    case BufferCondition::kAlways:
      return "always";
    case BufferCondition::kNoReader:
      return "no reader";
    case BufferCondition::kReadersOfSameVersion:
      return "readers of the same version";
    case BufferCondition::kReaders:
      return "readers";
    case BufferCondition::kForUnpublish:
      return "for unpublish or reset";
    case BufferCondition::kForUpdate:
      return "for update";
    case BufferCondition::kWrote:
      return "has written";
    case BufferCondition::kUntouchedPublished:
      return "untouched, was published";
    case BufferCondition::kUntouchedUndefined:
      return "untouched, was undefined";
    case BufferCondition::kUntouchedWritable:
      return "untouched, was writable";
  }
  return "unknown";
}

const std::vector<BufferTransition>& BufferTransitions() {
  using State = BufferState;
  using Event = BufferEvent;
  using When = BufferCondition;
  static const auto& table = *new std::vector<BufferTransition>{
      {State::kWritable, Event::kPublish, When::kAlways, State::kPublished, false},
      {State::kWritable, Event::kBeginUpdate, When::kAlways, State::kFilling, true},
      {State::kWritable, Event::kReset, When::kAlways, State::kWritable, false},

      {State::kPublished, Event::kUnpublish, When::kAlways, State::kDraining, false},
      {State::kPublished, Event::kBeginUpdate, When::kAlways, State::kDraining, false},

      {State::kDraining, Event::kDrained, When::kForUnpublish, State::kWritable,
       TH_MUTATE(kKeepGenerationAfterDrain, true, false)},
      {State::kDraining, Event::kDrained, When::kForUpdate, State::kFilling, true},

      {State::kFilling, Event::kFilled, When::kAlways, State::kPublished, false},
      {State::kFilling, Event::kFillFailed, When::kWrote, State::kUndefined, false},
      {State::kFilling, Event::kFillFailed, When::kUntouchedPublished, State::kPublished, true},
      {State::kFilling, Event::kFillFailed, When::kUntouchedUndefined, State::kUndefined, false},
      {State::kFilling, Event::kFillFailed, When::kUntouchedWritable, State::kWritable, false},

      {State::kUndefined, Event::kBeginUpdate, When::kNoReader, State::kFilling, true},
      // Readers read segments that were checked; a fill of the same version does not write them
      // again.
      {State::kUndefined, Event::kBeginUpdate, When::kReadersOfSameVersion, State::kFilling, true},
      {State::kUndefined, Event::kBeginUpdate, When::kReaders, State::kDraining, false},
      {State::kUndefined, Event::kReset, When::kNoReader, State::kWritable, true},
      {State::kUndefined, Event::kReset, When::kReaders, State::kDraining, false},
  };
  return table;
}

const BufferTransition* FindBufferTransition(BufferState from, BufferEvent event,
                                             BufferCondition condition) {
  const auto& table = BufferTransitions();
  const auto found = std::find_if(table.begin(), table.end(), [&](const BufferTransition& row) {
    return row.from == from && row.event == event &&
           (row.condition == BufferCondition::kAlways || row.condition == condition);
  });
  return found == table.end() ? nullptr : &*found;
}

bool BufferEventAllowed(BufferState from, BufferEvent event) {
  const auto& table = BufferTransitions();
  return std::any_of(table.begin(), table.end(), [&](const BufferTransition& row) {
    return row.from == from && row.event == event;
  });
}

}  // namespace th
