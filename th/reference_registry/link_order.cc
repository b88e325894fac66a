#include "th/reference_registry/link_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "th/identifiers/identifiers.h"
#include "th/reference_registry/assignment.h"
#include "th/registry_state/holders.h"
#include "th/registry_state/uplinks.h"
#include "th/scheduler/comparable_throughputs.h"
#include "th/scheduler/link_rate.h"
#include "th/scheduler/scheduler.h"
#include "th/scheduler/slow_source.h"
#include "th/topology/location.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

bool IsFilling(const Buffer& buffer) {
  return buffer.fill != nullptr && buffer.shard != nullptr && !buffer.content->complete;
}

bool HasSlowerLink(const Buffer& one, const Buffer& other) {
  return IsSlower(one.worker->link.limit(), other.worker->link.limit());
}

uint64_t BytesOf(const Buffer& buffer) {
  if (buffer.content->complete || buffer.segment_count == 0) return buffer.bytes;
  return buffer.bytes / buffer.segment_count * buffer.content->segments.count();
}

// The rate to which its sources' links hold the reader: that of the slowest. None: one of the
// sources does not hold it back.
std::optional<double> HeldTo(const Buffer& reader) {
  std::optional<double> rate;
  for (const BufferAddress& address : reader.sources) {
    const Buffer* source = HolderAt(*reader.shard, address);
    if (source == nullptr) return std::nullopt;
    const bool slower = TH_MUTATE(kStayBelowSlowLinks, HasSlowerLink(*source, reader), false);
    if (!slower) return std::nullopt;
    if (DistanceTo(reader, *source) <= Distance::kSameHost) return std::nullopt;
    rate = std::min(rate.value_or(*source->worker->link.limit()), *source->worker->link.limit());
  }
  return rate;
}

// The first of `choices` where the reader would stand well; null: nowhere.
const Buffer* GoodPlace(const Turn& turn, const Buffer& reader,
                        const std::vector<SchedulerChoice>& choices) {
  if (choices.empty() || choices.front().at_limit || choices.front().slower) return nullptr;
  const SchedulerChoice& best = choices.front();
  Distance farthest = Distance::kSameSite;
  for (const BufferAddress& address : reader.sources) {
    if (const Buffer* source = HolderAt(*reader.shard, address)) {
      farthest = std::max(farthest, DistanceTo(reader, *source));
    }
  }
  const Buffer* place = HolderAt(*reader.shard, best.source);
  const bool suits = best.distance <= farthest && !IsSuspected(*place->worker, turn.now) &&
                     !FillsFrom(*reader.shard, reader.address, best.source);
  return suits ? place : nullptr;
}

bool SharesWithAFasterOne(const Buffer& reader) {
  const std::vector<BufferAddress>& sources = reader.sources;
  return std::any_of(sources.begin(), sources.end(), [&](const BufferAddress& source) {
    const std::vector<Buffer*> others = ReadersOf(*reader.shard, source);
    return std::any_of(others.begin(), others.end(), [&](const Buffer* other) {
      return IsFilling(*other) && HasSlowerLink(reader, *other);
    });
  });
}

uint64_t MissingSegments(const Buffer& reader) {
  return reader.segment_count - std::min(reader.segment_count, reader.content->segments.count());
}

// How many readers step aside together after so many trials. Each lacks some segments of what the
// one above it has: those the next one has to catch up with.
uint64_t DepthOfTrial(const Buffer& reader, uint32_t trials) {
  const auto affordable =
      static_cast<uint64_t>(static_cast<double>(MissingSegments(reader)) * kTrialPartOfRest);
  return std::clamp<uint64_t>(affordable / kSegmentsInPassing, 1, uint64_t{1} << trials);
}

bool HasEnoughFor(const Turn& turn, const Buffer& reader, const Buffer& place, double rate) {
  const uint64_t has = ExpectedBytes(turn, reader);
  const uint64_t there = ExpectedBytes(turn, place);
  if (there >= has) return true;
  const auto lacks = static_cast<double>(has - there);
  const double in_time = rate * absl::ToDoubleSeconds(kWaitsInNewPlace);
  return lacks <= in_time && lacks <= static_cast<double>(reader.bytes - has) * kWaitsPartOfRest;
}

// The end of the chain below `reader`.
const Buffer& LastBelow(const Buffer& reader) {
  const Buffer* last = &reader;
  constexpr int kMostHops = 64;
  for (int hop = 0; hop < kMostHops; ++hop) {
    const std::vector<Buffer*> readers = ReadersOf(*reader.shard, last->address);
    if (readers.empty()) break;
    last = readers.front();
  }
  return *last;
}

// Moves the readers of `holder` that have faster links away from it. True: at least one moved.
bool LetReadersLeave(Turn& turn, Buffer& holder) {
  bool left = false;
  for (Buffer* reader : ReadersOf(*holder.shard, holder.address)) {
    if (Overtake(turn, *reader)) left = true;
  }
  return left;
}

// The reader and those below it in its chain, at most `most` of them.
std::vector<Buffer*> ChainFrom(Buffer& reader, uint64_t most) {
  std::vector<Buffer*> chain = {&reader};
  while (chain.size() < most) {
    const std::vector<Buffer*> readers = ReadersOf(*reader.shard, chain.back()->address);
    // The last of them has to have a reader that takes the place.
    if (readers.empty() || ReadersOf(*reader.shard, readers.front()->address).empty()) break;
    chain.push_back(readers.front());
  }
  return chain;
}

// The knowledge of the first reader below `source`. Old conclusions are forgotten so far that one
// more trial is made: slow readers may have been all that was tried.
FirstReader& RefreshFirstReader(const Turn& turn, Buffer& source) {
  FirstReader& first = source.worker->first_reader;
  if (first.best > 0 && turn.now - first.at > kLinkRateLasts) {
    first.trials = kMaxTrials - 1;
    first.best = 0;
  }
  return first;
}

// True if another reader of the source began a trial of late, which this one may conclude.
bool IsDoubted(const Turn& turn, const Buffer& source, const Buffer& reader) {
  return turn.now - source.worker->doubted_at < kJudgedFor &&
         source.worker->doubted_by != reader.address;
}

}  // namespace

void NoteLimitedLink(Turn& turn, Buffer& reader, double rate) {
  reader.worker->link.NoteLimited(rate, turn.now);
  ReindexAround(turn, *reader.worker);
  if (reader.shard == nullptr) return;
  LetReadersLeave(turn, reader);
  MakeWay(turn, reader);
}

void ForgetLimits(Turn& turn, const Shard& shard, double rate) {
  for (const auto& [address, holder] : shard.holders) {
    LinkRate& link = holder->worker->link;
    if (!link.limit().has_value() || IsSlower(link.limit(), rate)) continue;
    if (IsSlower(rate, link.limit())) continue;
    link.Forget();
    ReindexAround(turn, *holder->worker);
  }
}

uint64_t ExpectedBytes(const Turn& turn, const Buffer& buffer) {
  const uint64_t reported = BytesOf(buffer);
  if (buffer.content->complete || buffer.fill == nullptr) return reported;
  const FillThroughput& throughput = buffer.fill->throughput;
  if (turn.now - throughput.reported_at > 2 * kThroughputWindow) return reported;
  const double since =
      throughput.passing * absl::ToDoubleSeconds(turn.now - throughput.reported_at);
  return std::min(buffer.bytes, reported + static_cast<uint64_t>(since));
}

void NoteReceived(Turn& turn, Buffer& reader, double rate) {
  const std::vector<BufferAddress>& sources = reader.sources;
  const bool faster =
      std::all_of(sources.begin(), sources.end(), [&](const BufferAddress& address) {
        const Buffer* source = HolderAt(*reader.shard, address);
        return source != nullptr && HasSlowerLink(reader, *source);
      });
  const auto above = faster ? LinkRate::Above::kFaster : LinkRate::Above::kAlikeOrSlower;
  Worker& worker = *reader.worker;
  if (worker.link.NoteReceived(rate, above, turn.now)) ReindexAround(turn, worker);
}

bool Overtake(Turn& turn, Buffer& reader) {
  if (!IsFilling(reader)) return false;
  const std::optional<double> held_to = HeldTo(reader);
  if (!held_to.has_value()) return false;
  const double missing = static_cast<double>(reader.bytes - BytesOf(reader));
  if (missing <= *held_to * absl::ToDoubleSeconds(kWorthLeaving)) return false;
  const std::vector<SchedulerChoice> choices = ChoicesBeside(turn, reader, {});
  const Buffer* place = GoodPlace(turn, reader, choices);
  if (place == nullptr || ReadersThatKeepTheirPlace(*place, reader) > 0) return false;
  GiveSources(turn, reader, choices);
  return true;
}

void MakeWay(Turn& turn, Buffer& reader) {
  if (!IsFilling(reader) || !reader.worker->link.limit().has_value()) return;
  if (TH_MUTATE(kStandInTheWay, !SharesWithAFasterOne(reader), true)) return;
  const std::vector<SchedulerChoice> choices = ChoicesBeside(turn, reader, reader.sources);
  const Buffer* place = GoodPlace(turn, reader, choices);
  if (place == nullptr || ReadersThatKeepTheirPlace(*place, reader) > 0) return;
  if (!HasEnoughFor(turn, reader, *place, *reader.worker->link.limit())) {
    return SetRecheck(turn, reader, turn.now + kLookForPlace);
  }
  GiveSources(turn, reader, choices);
}

bool StepAside(Turn& turn, Buffer& reader, Buffer& source, double rate) {
  const FirstReader& first = RefreshFirstReader(turn, source);
  if (first.trials >= kMaxTrials) return false;
  // Readers that join together are often alike: each trial is of one further down.
  const std::vector<Buffer*> stepping = ChainFrom(reader, DepthOfTrial(reader, first.trials));
  std::vector<LinkRate> before;
  for (Buffer* one : stepping) {
    before.push_back(one->worker->link);
    // For as long as it takes to see what the next reader gets.
    one->worker->link.NoteForTrial(rate, turn.now + kJudgedFor);
    ReindexAround(turn, *one->worker);
  }
  const bool left = LetReadersLeave(turn, *stepping.back());
  for (size_t i = left ? 1 : 0; i < stepping.size(); ++i) {
    stepping[i]->worker->link = before[i];
    ReindexAround(turn, *stepping[i]->worker);
  }
  if (!left) return false;
  source.worker->doubted_by = reader.address;
  source.worker->doubted_at = turn.now;
  MakeWay(turn, reader);
  return true;
}

void TryAnother(Turn& turn, Buffer& reader, Buffer& source, double rate) {
  const bool alone = source.content->complete && reader.sources.size() == 1 &&
                     ReaderCount(*reader.shard, source.address) == 1;
  if (!IsFilling(reader) || !alone || reader.worker->link.limit().has_value()) return;
  FirstReader& first = RefreshFirstReader(turn, source);
  const VersionSequence version = reader.content->version;
  const bool is_second = first.version != VersionSequence() && first.version < version;
  const bool is_cheap = is_second || MissingSegments(reader) >= kSegmentsForATrial;
  const bool gets_less = rate * kLinksAlike < first.best;
  if (first.best > 0 ? !gets_less : !is_cheap) {
    first.version = version;
    return;
  }
  const double rest = static_cast<double>(reader.bytes - BytesOf(reader));
  if (rest < rate * absl::ToDoubleSeconds(kTrialIsWorth)) return;
  if (HasEnoughFor(turn, reader, LastBelow(reader), rate)) StepAside(turn, reader, source, rate);
}

bool ConcludeTrial(Turn& turn, const Buffer& reader, Buffer& source, double rate) {
  if (!IsDoubted(turn, source, reader)) return false;
  const Buffer* before = HolderAt(*reader.shard, source.worker->doubted_by);
  if (before == nullptr || !before->worker->link.limit().has_value()) return false;
  const double limit = *before->worker->link.limit();
  before->worker->link.NoteLimited(limit, turn.now);
  source.worker->doubted_at = absl::InfinitePast();
  FirstReader& first = source.worker->first_reader;
  first.version = reader.content->version;
  first.at = turn.now;
  if (rate > limit * kLinksAlike) {
    first.best = rate;
    first.trials = 0;
    return false;
  }
  if (TH_MUTATE(kTryForEver, true, false)) ++first.trials;
  if (first.trials >= kMaxTrials) {
    first.best = std::max(first.best, rate);
    ForgetLimits(turn, *reader.shard, rate);
  }
  return true;
}

bool HoldsBackOthers(const Buffer& reader) {
  const std::vector<Buffer*> readers = ReadersOf(*reader.shard, reader.address);
  return std::any_of(readers.begin(), readers.end(), [](const Buffer* other) {
    return IsFilling(*other) && !other->worker->link.limit().has_value();
  });
}

}  // namespace th::registry
