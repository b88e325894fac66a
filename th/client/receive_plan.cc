#include "th/client/receive_plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr size_t kNearNames = 3;

bool IsPattern(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

// How many bytes two names begin and end with in common.
size_t Likeness(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t prefix = 0;
  while (prefix < most && a[prefix] == b[prefix]) ++prefix;
  size_t suffix = 0;
  while (suffix < most - prefix && a[a.size() - 1 - suffix] == b[b.size() - 1 - suffix]) ++suffix;
  return prefix + suffix;
}

absl::Status NothingMatches(const ShardLayout& layout, const std::string& text) {
  std::vector<std::pair<size_t, absl::string_view>> names;
  names.reserve(layout.tensors().size());
  for (const TensorSpec& tensor : layout.tensors()) {
    names.emplace_back(Likeness(text, tensor.name), tensor.name);
  }
  const size_t near = std::min(kNearNames, names.size());
  std::partial_sort(names.begin(), names.begin() + static_cast<ptrdiff_t>(near), names.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : a.second < b.second;
                    });
  names.resize(near);
  const std::string list = absl::StrJoin(
      names, ", ", [](std::string* out, const auto& name) { absl::StrAppend(out, name.second); });
  return absl::NotFoundError(
      absl::StrCat("no tensor of the shard ", IsPattern(text) ? "matches " : "is named ", text,
                   "; it has ", layout.tensors().size(), ", the nearest are ", list));
}

// Marks what `text` names in `asked`; false: nothing.
bool Mark(const ShardLayout& layout, const std::string& text, std::vector<bool>& asked) {
  const std::vector<TensorSpec>& tensors = layout.tensors();
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), text,
      [](const TensorSpec& tensor, const std::string& name) { return tensor.name < name; });
  bool any = false;
  for (auto box = found; box != tensors.end() && box->name == text; ++box) {
    asked[static_cast<size_t>(box - tensors.begin())] = any = true;
  }
  if (any || !IsPattern(text)) return any;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (fnmatch(text.c_str(), tensors[i].name.c_str(), 0) != 0) continue;
    asked[i] = any = true;
  }
  return any;
}

absl::StatusOr<std::vector<bool>> Select(const ShardLayout& layout,
                                         const std::vector<std::string>& tensors) {
  std::vector<bool> asked(layout.tensors().size(), tensors.empty());
  const auto patterns = std::count_if(tensors.begin(), tensors.end(), IsPattern);
  if (static_cast<size_t>(patterns) > kMaxReceivePatterns) {
    return absl::InvalidArgumentError(absl::StrCat(
        patterns, " patterns of tensor names, and at most ", kMaxReceivePatterns, " are taken"));
  }
  for (const std::string& text : tensors) {
    if (!Mark(layout, text, asked)) return NothingMatches(layout, text);
  }
  return asked;
}

}  // namespace

absl::StatusOr<ReceivePlan> ReceivePlan::Make(std::shared_ptr<const ShardLayout> layout,
                                              const std::vector<std::string>& tensors,
                                              uint64_t limit_bytes) {
  TH_ASSIGN_OR_RETURN(const std::vector<bool> asked, Select(*layout, tensors));
  ReceivePlan plan(std::move(layout));
  plan.Want(asked);
  TH_RETURN_IF_ERROR(plan.Fit(limit_bytes));
  return plan;
}

void ReceivePlan::Want(const std::vector<bool>& asked) {
  std::vector<std::vector<uint32_t>> names(layout_->storages().size());
  for (uint32_t i = 0; i < asked.size(); ++i) {
    if (!asked[i]) continue;
    names[layout_->StorageOf(i)].push_back(i);
    ++tensors_;
  }
  std::vector<SegmentRange> ranges;
  for (uint32_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    const ShardLayout::Storage& storage = layout_->storages()[i];
    asked_.push_back({i, std::move(names[i])});
    if (storage.bytes == 0) continue;
    const uint64_t last = storage.stream_offset + storage.bytes - 1;
    ranges.push_back({SegmentIndex(storage.stream_offset / layout_->segment_bytes()),
                      SegmentIndex(last / layout_->segment_bytes() + 1)});
  }
  wanted_ = SegmentSet::FromRanges(std::move(ranges));
}

absl::Status ReceivePlan::Fit(uint64_t limit_bytes) {
  const uint64_t count = wanted_.count();
  if (count == 0) return absl::OkStatus();
  // A shard of one segment may be shorter than that.
  const uint64_t least = std::min(layout_->segment_bytes(), layout_->bytes());
  if (limit_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a limit of ", limit_bytes, " bytes holds no segment of the shard; the least is ", least));
  }
  slots_ = std::min(limit_bytes / least, count);
  ring_bytes_ = slots_ * least;
  return absl::OkStatus();
}

ReceivePlan::Slice ReceivePlan::SliceAt(const Asked& asked) const {
  const ShardLayout::Storage& storage = layout_->storages()[asked.storage];
  const uint64_t position = storage.stream_offset + offset_;
  const uint64_t segment_offset = position % layout_->segment_bytes();
  const uint64_t left = storage.bytes - offset_;
  if (left == 0) return {.tensor = asked.tensors[name_]};
  return {.tensor = asked.tensors[name_],
          .offset = offset_,
          .bytes = std::min(left, layout_->segment_bytes() - segment_offset),
          .segment = SegmentIndex(position / layout_->segment_bytes()),
          .segment_offset = segment_offset};
}

std::optional<ReceivePlan::Slice> ReceivePlan::Next() {
  if (at_ == asked_.size()) return std::nullopt;
  const Asked& asked = asked_[at_];
  const Slice slice = SliceAt(asked);
  if (++name_ < asked.tensors.size()) return slice;
  name_ = 0;
  offset_ += slice.bytes;
  if (offset_ < layout_->storages()[asked.storage].bytes) return slice;
  offset_ = 0;
  ++at_;
  return slice;
}

}  // namespace th
