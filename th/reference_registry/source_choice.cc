#include "th/reference_registry/source_choice.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "th/registry_state/holders.h"
#include "th/registry_state/uplinks.h"
#include "th/scheduler/fill_paths.h"
#include "th/topology/location.h"

namespace th::registry {
namespace {

// Room that spares a snapshot most of its growing.
constexpr size_t kUsualSnapshot = 32;

// The description of a candidate for `reader` that the scheduler gets.
SchedulerHolder HolderOf(const Turn& turn, const Buffer& buffer, const Buffer& reader) {
  const Content& content = *buffer.content;
  const Worker& worker = *buffer.worker;
  return {.buffer = buffer.address,
          .location = &worker.location,
          .complete = content.complete,
          .publisher = content.publisher,
          .suspected = IsSilent(turn.state, worker, turn.now) || IsSuspected(worker, turn.now),
          .leaving = worker.leaving(),
          .segments_held = content.complete ? buffer.segment_count : content.segments.count(),
          .segments = buffer.segment_count,
          .readers = ReadersThatKeepTheirPlace(buffer, reader),
          .outstanding_bytes = OutstandingBytes(turn, worker, reader),
          .link_limit = worker.link.limit(),
          .chain = content.complete ? 0 : content.chain};
}

class FillsOf : public FillGraph {
 public:
  explicit FillsOf(const Shard& shard) : shard_(shard) {}
  Holder At(const BufferAddress& buffer) const override {
    auto found = shard_.holders.find(buffer);
    // Announced as a source by a reader that outlived the last epoch: it feeds, and may come back.
    if (found == shard_.holders.end()) return {.complete = true};
    return {.complete = found->second->content->complete, .sources = found->second->sources};
  }

 private:
  const Shard& shard_;
};

// The best sources for a reader among the candidates of the places that were looked at, and those
// that its own worker holds. Lives within a turn in which nothing changes meanwhile.
class SourceSearch {
 public:
  SourceSearch(const Turn& turn, const Buffer& reader, std::vector<BufferAddress> excluded)
      : turn_(turn),
        reader_(reader),
        shard_(*reader.shard),
        demand_{.reader = reader.address,
                .location = reader.worker->location,
                .bytes = reader.bytes,
                .excluded = std::move(excluded),
                .link_limit = reader.worker->link.limit()},
        fills_(shard_),
        paths_(fills_, reader.address) {
    snapshot_.holders.reserve(kUsualSnapshot);
    for (const auto& [id, own] : reader.worker->buffers) {
      if (own.shard == &shard_ && own.indexed.has_value()) Add(own);
    }
  }

  // The first `room` candidates there, beside as many as are excluded.
  void ConsiderFrom(absl::string_view place, size_t room) {
    auto found = shard_.candidates.find(place);
    if (found == shard_.candidates.end()) return;
    room += demand_.excluded.size() + 1;  // the reader may be one of them
    for (const auto& [key, holder] : found->second) {
      if (room-- == 0) break;
      Add(*holder);
    }
  }

  std::vector<SchedulerChoice> Best() {
    return Schedule(snapshot_, demand_, turn_.state.limits.scheduler, paths_);
  }

 private:
  void Add(const Buffer& holder) {
    if (seen_.insert(&holder).second) {
      snapshot_.holders.push_back(HolderOf(turn_, holder, reader_));
    }
  }

  const Turn& turn_;
  const Buffer& reader_;
  const Shard& shard_;
  const SchedulerDemand demand_;
  const FillsOf fills_;
  FillPaths paths_;
  absl::flat_hash_set<const Buffer*> seen_;
  SchedulerSnapshot snapshot_;
};

// Looks at the places near the reader, the nearest first, and stops at the first whose best source
// is near enough, neither at a limit nor behind a slower link: nobody farther can better it. Empty:
// there is none, or another policy, for which this only collects.
std::vector<SchedulerChoice> ChooseNearby(SourceSearch& search, const Location& reader,
                                          SchedulerPolicy policy) {
  for (const NearPlace& place : NearPlacesOf(reader)) {
    search.ConsiderFrom(place.name, kMaxCandidatesPerPlace);
    if (policy != SchedulerPolicy::kNearest) continue;
    std::vector<SchedulerChoice> choices = search.Best();
    if (choices.empty() || choices.front().distance > place.farthest) continue;
    if (!choices.front().at_limit && !choices.front().slower) return choices;
  }
  return {};
}

// The best choices of the reader's site and of the whole fleet.
std::vector<SchedulerChoice> ChooseAnywhere(SourceSearch& search, const std::string& site) {
  search.ConsiderFrom(site, kMaxCandidatesPerPlace);
  search.ConsiderFrom(kAllCandidates, kMaxCandidatesPerPlace);
  std::vector<SchedulerChoice> choices = search.Best();
  if (!choices.empty()) return choices;
  // Perhaps all that were looked at are fed by the reader, directly or not; complete ones are fed
  // by nobody.
  search.ConsiderFrom(kCompleteCandidates, kMaxCandidatesPerPlace);
  return search.Best();
}

// Perhaps all that were looked at in the reader's site are fed by it: before it crosses over to
// another one, more are looked at.
std::vector<SchedulerChoice> ChooseBeforeCrossing(SourceSearch& search, const std::string& site) {
  search.ConsiderFrom(site, kMaxCandidatesBeforeCrossing);
  return search.Best();
}

}  // namespace

std::vector<SchedulerChoice> ChooseSources(const Turn& turn, const Buffer& reader,
                                           std::vector<BufferAddress> excluded) {
  const Location& location = reader.worker->location;
  const SchedulerPolicy policy = turn.state.limits.scheduler.policy;
  SourceSearch search(turn, reader, std::move(excluded));
  std::vector<SchedulerChoice> choices = ChooseNearby(search, location, policy);
  if (!choices.empty()) return choices;
  const std::string site = SitePlaceOf(location);
  choices = ChooseAnywhere(search, site);
  const bool crosses = policy == SchedulerPolicy::kNearest && !choices.empty() &&
                       choices.front().distance == Distance::kOtherSite;
  if (crosses) return ChooseBeforeCrossing(search, site);
  return choices;
}

}  // namespace th::registry
