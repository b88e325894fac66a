#include "th/reference_registry/assignment.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/capability.h"
#include "th/reference_registry/source_choice.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "th/scheduler/link_rate.h"
#include "th/scheduler/scheduler.h"
#include "th/topology/location.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

// A reader's report on a source keeps this many bytes of detail.
constexpr size_t kMaxDetailBytes = 200;

bool LacksSegments(const Buffer& buffer) {
  return buffer.fill != nullptr && buffer.shard != nullptr && !buffer.content->complete;
}

// A source that fills another generation of its buffer now is not the one that failed.
bool StillApplies(const Shard& shard, const Exclusion& exclusion) {
  auto found = shard.holders.find(exclusion.source);
  return found != shard.holders.end() && found->second->generation == exclusion.generation;
}

// Which of the sources that failed a fill before are meant: all, or those that are not due for
// another try (a pause before it, or all tries spent).
enum class Failed : uint8_t { kAll, kNotDue };

std::vector<BufferAddress> FailedSources(const Turn& turn, const Buffer& buffer, Failed which) {
  std::vector<BufferAddress> sources;
  for (const Exclusion& exclusion : buffer.fill->exclusions) {
    const bool may_try = TH_MUTATE(
        kForgetFailedSources, which == Failed::kNotDue && exclusion.retry_at <= turn.now, true);
    if (!may_try && StillApplies(*buffer.shard, exclusion)) sources.push_back(exclusion.source);
  }
  return sources;
}

// Those that failed are tried again only where there is nobody else.
std::vector<SchedulerChoice> ChooseOrRetry(const Turn& turn, const Buffer& buffer) {
  std::vector<BufferAddress> failed = FailedSources(turn, buffer, Failed::kAll);
  std::vector<BufferAddress> not_due = FailedSources(turn, buffer, Failed::kNotDue);
  const bool some_are_due = not_due.size() < failed.size();
  std::vector<SchedulerChoice> choices = ChooseSources(turn, buffer, std::move(failed));
  if (choices.empty() && some_are_due) choices = ChooseSources(turn, buffer, std::move(not_due));
  return choices;
}

AssignedSource DescribeSource(const Turn& turn, const Buffer& reader, const Buffer& source,
                              AssignmentId assignment) {
  const CapabilityClaims claims{.reader = reader.address.worker,
                                .source = source.address,
                                .version = reader.content->version,
                                .epoch = turn.state.epoch,
                                .assignment = assignment};
  return {.buffer = source.address,
          .name = NameOf(source),
          .endpoints = source.worker->endpoints,
          .generation = source.generation,
          .distance = DistanceBetween(reader.worker->location, source.worker->location),
          .partial = !source.content->complete,
          .publisher = source.content->publisher,
          .capability =
              MintCapability(DeriveWorkerKey(turn.state.secret, source.address.worker), claims)};
}

// The update that the buffer fills in: there is no fill without one.
Transaction& OperationOf(const Buffer& buffer) {
  return buffer.replica->pending.at(buffer.fill->operation);
}

AssignSources NewAssignment(Turn& turn, Buffer& buffer) {
  Transaction& transaction = OperationOf(buffer);
  buffer.fill->assignment = AssignmentOf(transaction.event, ++transaction.update().assignments);
  buffer.fill->confirmed = false;
  return {.key = {buffer.address.buffer, buffer.fill->operation},
          .assignment = buffer.fill->assignment,
          .version = buffer.content->version,
          .event = transaction.event};
}

void SendSources(Turn& turn, Buffer& buffer) {
  AssignSources message = NewAssignment(turn, buffer);
  for (const BufferAddress& source : SourcesOf(*buffer.shard, buffer.address)) {
    auto found = buffer.shard->holders.find(source);
    if (found == buffer.shard->holders.end()) continue;
    message.sources.push_back(DescribeSource(turn, buffer, *found->second, message.assignment));
  }
  buffer.fill->sent_empty = message.sources.empty();
  if (message.sources.empty()) message.why_empty = "its sources have not come back yet";
  Send(turn, *buffer.worker, std::move(message));
}

// Another assignment than the fill's first.
void NoteReroute(Turn& turn, const Buffer& buffer) {
  const Shard& shard = *buffer.shard;
  ++OperationOf(buffer).participants.at(RankOf(buffer)).update().reroutes;
  std::string names;
  for (const BufferAddress& source : SourcesOf(shard, buffer.address)) {
    auto found = shard.holders.find(source);
    if (found == shard.holders.end()) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", NameOf(*found->second).ToString());
  }
  Note(turn, shard.version->model->key,
       {EventKind::kRerouted, OperationOf(buffer).event, NameOf(buffer).ToString()},
       absl::StrCat("fills ", shard.version->info.ToString(), " from ", names, " now"));
}

// Those behind slower links that fill from a source of `reader` look for another place.
void LetSlowerOnesLook(Turn& turn, const Buffer& reader) {
  const Shard& shard = *reader.shard;
  for (const BufferAddress& source : SourcesOf(shard, reader.address)) {
    for (Buffer* const other : ReadersOf(shard, source)) {
      const bool slower = IsSlower(other->worker->link.limit(), reader.worker->link.limit());
      if (slower) SetRecheck(turn, *other, turn.now);
    }
  }
}

void TakeSources(Turn& turn, Buffer& buffer, const std::vector<SchedulerChoice>& choices) {
  Shard& shard = *buffer.shard;
  std::vector<BufferAddress> sources;
  sources.reserve(choices.size());
  uint32_t chain = 0;
  for (const SchedulerChoice& choice : choices) {
    sources.push_back(choice.source);
    chain = std::max(chain, choice.chain + 1);
  }
  shard.waiting.erase(buffer.address);
  SetRetry(turn, buffer, absl::InfiniteFuture());
  buffer.content->chain = chain;
  SetSources(turn, shard, buffer.address, std::move(sources));
  Reindex(turn, buffer);
  LetSlowerOnesLook(turn, buffer);
  ++turn.state.counters.assignments;
  // A reader that only waited for its first source is not re-routed.
  const bool waited = buffer.fill->sent_empty && buffer.fill->exclusions.empty();
  const bool again = buffer.fill->assignment != AssignmentId() && !waited;
  SendSources(turn, buffer);
  if (again) NoteReroute(turn, buffer);
}

// How often one source may fail one fill, without anything received in between, before it is given
// up.
uint32_t MaxTriesOf(SourceFailure failure) {
  switch (failure) {
    case SourceFailure::kConnect:
    case SourceFailure::kClosed:
    case SourceFailure::kStalled:
    case SourceFailure::kRefused:  // its key may just have changed with a new server
      return 4;
    case SourceFailure::kCorrupt:  // a bit flipped on the way is not the source's end
      return 2;
    case SourceFailure::kGenerationChanged:  // only another generation is worth a try
      return 1;
  }
  return 1;
}

bool IsSpent(const Exclusion& exclusion) {
  return exclusion.tries >= MaxTriesOf(exclusion.failure);
}

bool HasGivenUp(const Buffer& reader, const BufferAddress& source) {
  const std::vector<Exclusion>& exclusions = reader.fill->exclusions;
  return std::any_of(exclusions.begin(), exclusions.end(), [&](const Exclusion& exclusion) {
    return exclusion.source == source && IsSpent(exclusion);
  });
}

// True when a holder that is not complete is being fed, maybe by one that drains or that has not
// come back since a restart: it feeds others then.
bool MayBecomeSource(const Buffer& holder) {
  return !holder.content->complete && !holder.content->refused &&
         holder.replica->phase == ReplicaPhase::kFilling &&
         holder.replica->role != BufferRole::kStreaming && !holder.sources.empty();
}

// True when there is a complete holder that this reader has not given up for good, or may yet be
// one.
bool MayBecomeFed(const Turn& turn, const Buffer& buffer) {
  const Shard& shard = *buffer.shard;
  if (turn.state.adopting && shard.version->from_earlier_epoch) return true;
  uint32_t given_up = 0;
  for (const Exclusion& exclusion : buffer.fill->exclusions) {
    auto found = shard.holders.find(exclusion.source);
    if (found == shard.holders.end() || !found->second->counted_promising) continue;
    if (IsSpent(exclusion) && StillApplies(shard, exclusion)) ++given_up;
  }
  if (shard.complete_promising > given_up) return true;
  return std::any_of(shard.holders.begin(), shard.holders.end(), [&](const auto& entry) {
    const auto& [address, holder] = entry;
    return address != buffer.address && MayBecomeSource(*holder) && !HasGivenUp(buffer, address) &&
           !WouldCycle(shard, buffer.address, address);
  });
}

// The failure as words that follow "source trainer/0".
absl::string_view WhatFailed(SourceFailure failure) {
  switch (failure) {
    case SourceFailure::kConnect:
      return "could not be reached";
    case SourceFailure::kClosed:
      return "closed the connection";
    case SourceFailure::kStalled:
      return "fell silent";
    case SourceFailure::kRefused:
      return "refused the reader";
    case SourceFailure::kCorrupt:
      return "sent wrong bytes";
    case SourceFailure::kGenerationChanged:
      return "moved on to other weights";
  }
  return "failed";
}

absl::string_view WhatFailed(const Exclusion& exclusion) {
  return exclusion.slow ? "was slow" : WhatFailed(exclusion.failure);
}

std::string DescribeFailures(const Fill& fill) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < fill.exclusions.size() && i < kNamed; ++i) {
    const Exclusion& exclusion = fill.exclusions[i];
    absl::StrAppend(&text, i == 0 ? "" : "; ", "source ", exclusion.name.ToString(), " ",
                    WhatFailed(exclusion), " (", exclusion.tries,
                    exclusion.tries == 1 ? " try" : " tries", ")",
                    exclusion.detail.empty() ? "" : ": ", exclusion.detail);
  }
  if (fill.exclusions.size() > kNamed) {
    absl::StrAppend(&text, "; ", fill.exclusions.size() - kNamed, " others failed too");
  }
  return text;
}

// The newest version that has a holder, for people to fall back to.
std::string NewestThereIs(const Model& model) {
  for (auto it = model.versions.rbegin(); it != model.versions.rend(); ++it) {
    if (it->second.phase != VersionPhase::kPublished || it->second.shards.empty()) continue;
    const bool held = std::all_of(it->second.shards.begin(), it->second.shards.end(),
                                  [](const auto& entry) { return IsCompletable(entry.second); });
    if (held) return absl::StrCat("the newest version there is: ", it->second.info.ToString());
  }
  return "no version is held by anybody";
}

void FailForWantOfSources(Turn& turn, Buffer& buffer) {
  const Version& version = *buffer.shard->version;
  std::string text = absl::StrCat("rank ", NameOf(buffer).ToString(), " has no source left for ",
                                  version.info.ToString(), ": ");
  const std::string failures = DescribeFailures(*buffer.fill);
  const char* gone = IsUnsealable(*buffer.shard)
                         ? "its publisher went before the checksums were known"
                         : "its last holder is gone";
  absl::StrAppend(&text, failures.empty() ? gone : failures, "; ", NewestThereIs(*version.model));
  FailOperation(turn, *buffer.replica, buffer.fill->operation, absl::UnavailableError(text));
}

// Others are given sources before it.
bool IsPutOff(const Turn& turn, const Fill& fill) { return turn.now < fill.deferred_until; }

std::string WhyEmpty(const Turn& turn, const Buffer& buffer, bool may_be_fed) {
  if (IsPutOff(turn, *buffer.fill)) return "its link is slow: others are given sources first";
  if (!may_be_fed) return "the last holder is gone";
  if (!buffer.fill->exclusions.empty()) {
    return absl::StrCat("waiting to try again: ", DescribeFailures(*buffer.fill));
  }
  return "no holder is connected; waiting for one to come back";
}

void LetWait(Turn& turn, Buffer& buffer, bool may_be_fed) {
  Shard& shard = *buffer.shard;
  SetSources(turn, shard, buffer.address, {});
  shard.waiting.insert(buffer.address);
  absl::Time retry_at = absl::InfiniteFuture();
  if (turn.now < buffer.fill->grace_ends) retry_at = buffer.fill->grace_ends;
  if (IsPutOff(turn, *buffer.fill)) retry_at = std::min(retry_at, buffer.fill->deferred_until);
  for (const Exclusion& exclusion : buffer.fill->exclusions) {
    if (StillApplies(shard, exclusion) && exclusion.retry_at > turn.now) {
      retry_at = std::min(retry_at, exclusion.retry_at);
    }
  }
  SetRetry(turn, buffer, retry_at);
  if (buffer.fill->sent_empty) return;
  AssignSources message = NewAssignment(turn, buffer);
  message.why_empty = WhyEmpty(turn, buffer, may_be_fed);
  buffer.fill->sent_empty = true;
  Send(turn, *buffer.worker, std::move(message));
}

// True when another buffer of the reader's own worker can feed it: no uplink is used.
bool OwnWorkerHolds(const Buffer& reader) {
  const auto& own = reader.worker->buffers;
  return std::any_of(own.begin(), own.end(), [&](const auto& entry) {
    const Buffer& buffer = entry.second;
    return &buffer != &reader && buffer.shard == reader.shard && buffer.indexed.has_value();
  });
}

// Nobody should stand behind a slow uplink: of readers that ask at once it is to be the last in the
// chain.
void PutOffSlowReader(Turn& turn, Buffer& reader) {
  Fill& fill = *reader.fill;
  const bool begins =
      fill.assignment == AssignmentId() && fill.deferred_until == absl::InfinitePast();
  if (!begins || OwnWorkerHolds(reader)) return;
  if (reader.worker->link.ForgetOld(turn.now)) ReindexAround(turn, *reader.worker);
  const LinkRate& link = reader.worker->link;
  if (turn.now < reader.worker->slow_until) {
    fill.deferred_until = turn.now + kSlowAsksLater;
  } else if (link.limit().has_value()) {
    const absl::Duration takes = absl::Seconds(static_cast<double>(reader.bytes) / *link.limit());
    const double unproved = absl::FDivDuration(link.UnprovedFor(turn.now), kLinkRateLasts);
    const double part = 1 - kUnprovedAskEarlier * std::min(1.0, unproved);
    fill.deferred_until = turn.now + std::min(kSlowAsksLater, takes * kSlowAsksLaterPart) * part;
  }
}

// True when the choice is nearer than all that the reader fills from: what is as near gains it less
// than a switch costs.
bool IsNearer(const SchedulerChoice& choice, const Buffer& reader) {
  const Shard& shard = *reader.shard;
  const std::vector<BufferAddress>& sources = SourcesOf(shard, reader.address);
  return !choice.at_limit &&
         std::all_of(sources.begin(), sources.end(), [&](const BufferAddress& source) {
           const auto holder = shard.holders.find(source);
           return holder != shard.holders.end() &&
                  choice.distance <
                      DistanceBetween(reader.worker->location, holder->second->worker->location);
         });
}

Exclusion& ExclusionOf(Fill& fill, const BufferAddress& source) {
  auto found = std::find_if(fill.exclusions.begin(), fill.exclusions.end(),
                            [&](const Exclusion& e) { return e.source == source; });
  if (found != fill.exclusions.end()) return *found;
  // The oldest makes room: it failed longest ago, and may be tried again first.
  if (fill.exclusions.size() >= kMaxExclusions) fill.exclusions.erase(fill.exclusions.begin());
  fill.exclusions.push_back({.source = source});
  return fill.exclusions.back();
}

// Notes what the reader tells of a source; null: that has gone since. Why it is not to have it
// again, and until when, is the caller's to add.
Exclusion& Exclude(Buffer& reader, const BufferAddress& address, const Buffer* source,
                   absl::string_view detail) {
  Exclusion& exclusion = ExclusionOf(*reader.fill, address);
  exclusion.detail = std::string(detail.substr(0, kMaxDetailBytes));
  if (source != nullptr) {
    exclusion.name = NameOf(*source);
    exclusion.generation = source->generation;
  }
  return exclusion;
}

// From now on it fills from nobody; at the end of the turn it is given others.
void RevokeSources(Turn& turn, Buffer& reader) {
  SetSources(turn, *reader.shard, reader.address, {});
  turn.to_assign.insert(reader.address);
}

// OK when the buffer fills under this key and assignment, and from this source.
absl::Status CheckPullsFrom(const RegistryState& state, const BufferAddress& buffer,
                            OperationKey key, AssignmentId assignment,
                            const BufferAddress& source) {
  const auto own = FindOwnOperation(state, buffer, key.number);
  if (!own.ok()) return own.status();
  const Buffer& reader = *own->buffer;
  if (reader.fill == nullptr || reader.fill->operation != key.number) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(reader).ToString(), " reports a source while it fills nothing"));
  }
  const bool current = assignment == reader.fill->assignment || reader.fill->confirmed;
  if (!current || !FillsFrom(*reader.shard, reader.address, source)) {
    return absl::FailedPreconditionError(absl::StrCat(
        NameOf(reader).ToString(), " reports a source of an assignment that was replaced"));
  }
  return absl::OkStatus();
}

void Suspect(Turn& turn, Worker& worker) {
  worker.suspected_until = turn.now + kSuspicionLasts;
  ReindexAll(turn, worker);
}

void NoteReport(Turn& turn, const Buffer& reader, EventKind kind, const RankName& source,
                absl::string_view what, absl::string_view detail) {
  const Version& version = *reader.shard->version;
  Note(turn, version.model->key, {kind, OperationOf(reader).event, NameOf(reader).ToString()},
       absl::StrCat(version.info.label.text(), " from ", source.ToString(), ", which ", what, ": ",
                    detail));
}

// `received`: segments that the reader has by now. What a source failed before the reader got on is
// past; wrong bytes are not, whatever came after them.
void SpendTry(Exclusion& exclusion, SourceFailure failure, uint64_t received, absl::Time now) {
  if (received > exclusion.received) exclusion.tries = exclusion.wrong;
  exclusion.received = received;
  exclusion.failure = failure;
  exclusion.slow = false;
  ++exclusion.tries;
  if (failure == SourceFailure::kCorrupt) ++exclusion.wrong;
  exclusion.retry_at =
      IsSpent(exclusion) ? absl::InfiniteFuture() : now + kRetryPause * exclusion.tries;
}

// A source that moved on or did not know the reader yet did nothing wrong.
bool IsSourcesFault(SourceFailure failure) {
  return failure != SourceFailure::kGenerationChanged && failure != SourceFailure::kRefused;
}

}  // namespace

void AssignFill(Turn& turn, Buffer& buffer) {
  if (!LacksSegments(buffer)) return;
  if (IsUnsealable(*buffer.shard) && !turn.state.adopting) {
    return FailForWantOfSources(turn, buffer);
  }
  PutOffSlowReader(turn, buffer);
  if (IsPutOff(turn, *buffer.fill)) return LetWait(turn, buffer, /*may_be_fed=*/true);
  const std::vector<SchedulerChoice> choices = ChooseOrRetry(turn, buffer);
  if (!choices.empty()) return TakeSources(turn, buffer, choices);
  const bool may_be_fed = MayBecomeFed(turn, buffer);
  if (!may_be_fed && turn.now >= buffer.fill->grace_ends) return FailForWantOfSources(turn, buffer);
  LetWait(turn, buffer, may_be_fed);
}

void MoveFill(Turn& turn, Buffer& buffer) {
  if (!LacksSegments(buffer)) return;
  const Shard& shard = *buffer.shard;
  if (SourcesOf(shard, buffer.address).empty()) return;
  const std::vector<SchedulerChoice> choices =
      ChooseSources(turn, buffer, FailedSources(turn, buffer, Failed::kAll));
  if (choices.empty()) return;
  const SchedulerChoice& best = choices.front();
  if (FillsFrom(shard, buffer.address, best.source) || shard.leaving.contains(best.source)) return;
  if (ASourceLeaves(buffer) || IsNearer(best, buffer)) TakeSources(turn, buffer, choices);
}

std::vector<SchedulerChoice> ChoicesBeside(const Turn& turn, const Buffer& reader,
                                           const std::vector<BufferAddress>& without) {
  std::vector<BufferAddress> excluded = FailedSources(turn, reader, Failed::kAll);
  excluded.insert(excluded.end(), without.begin(), without.end());
  return ChooseSources(turn, reader, std::move(excluded));
}

void GiveSources(Turn& turn, Buffer& reader, const std::vector<SchedulerChoice>& choices) {
  TakeSources(turn, reader, choices);
}

std::optional<SchedulerChoice> BestOtherThan(const Turn& turn, const Buffer& reader,
                                             const BufferAddress& source) {
  const std::vector<SchedulerChoice> choices = ChoicesBeside(turn, reader, {source});
  if (choices.empty()) return std::nullopt;
  return choices.front();
}

void LeaveSource(Turn& turn, Buffer& reader, const Buffer& source, absl::Time slow_until,
                 const std::string& why) {
  ++turn.state.counters.sources_left;
  Exclusion& exclusion = Exclude(reader, source.address, &source, why);
  exclusion.slow = true;
  exclusion.retry_at = turn.now;
  NoteReport(turn, reader, EventKind::kSourceSuspected, exclusion.name, "is left for being slow",
             exclusion.detail);
  source.worker->slow_until = slow_until;
  ReindexAll(turn, *source.worker);
  RevokeSources(turn, reader);
}

void RepeatAssignment(Turn& turn, Buffer& buffer) { SendSources(turn, buffer); }

bool ASourceLeaves(const Buffer& reader) {
  const Shard& shard = *reader.shard;
  const std::vector<BufferAddress>& sources = SourcesOf(shard, reader.address);
  return std::any_of(sources.begin(), sources.end(),
                     [&](const BufferAddress& source) { return shard.leaving.contains(source); });
}

bool IsCompletable(const Shard& shard) {
  if (IsUnsealable(shard)) return false;
  if (shard.complete_promising > 0) return true;
  return std::any_of(shard.holders.begin(), shard.holders.end(),
                     [](const auto& entry) { return MayBecomeSource(*entry.second); });
}

absl::Status ReportSourceFailed::CanApply(const RegistryState& state) const {
  return CheckPullsFrom(state, buffer, message.key, message.assignment, message.source);
}

void ReportSourceFailed::Apply(Turn& turn) const {
  Buffer& reader = *FindBuffer(turn.state, buffer);
  const Shard& shard = *reader.shard;
  ++turn.state.counters.sources_failed;
  ++shard.version->model->totals.sources_failed;
  const auto found = shard.holders.find(message.source);
  const Buffer* source = found == shard.holders.end() ? nullptr : found->second;
  Exclusion& exclusion = Exclude(reader, message.source, source, message.detail);
  SpendTry(exclusion, message.failure, reader.content->segments.count(), turn.now);
  reader.fill->grace_ends = absl::InfinitePast();  // it says itself that it lacks something
  const bool excused = turn.now - reader.worker->heard_again_at < kOwnSilenceExcuses;
  if (source != nullptr && IsSourcesFault(message.failure) && !excused) {
    Suspect(turn, *source->worker);
  }
  NoteReport(turn, reader, EventKind::kSourceFailed, exclusion.name, WhatFailed(message.failure),
             exclusion.detail);
  RevokeSources(turn, reader);
}

absl::Status SuspectSource::CanApply(const RegistryState& state) const {
  return CheckPullsFrom(state, buffer, message.key, message.assignment, message.source);
}

// Excluded without a try spent: whoever else can serve comes first, however far, and where there is
// nobody the reader is given the same source again, and knows by that.
void SuspectSource::Apply(Turn& turn) const {
  Buffer& reader = *FindBuffer(turn.state, buffer);
  ++turn.state.counters.sources_suspected;
  ++reader.shard->version->model->totals.sources_suspected;
  auto found = reader.shard->holders.find(message.source);
  if (found == reader.shard->holders.end()) return;  // it has not come back since a restart
  const Buffer& source = *found->second;
  Exclusion& exclusion = Exclude(reader, message.source, &source, message.detail);
  exclusion.failure = SourceFailure::kCorrupt;
  exclusion.slow = false;
  exclusion.retry_at = turn.now;
  NoteReport(turn, reader, EventKind::kSourceSuspected, exclusion.name, "is suspected",
             exclusion.detail);
  Suspect(turn, *source.worker);
  RevokeSources(turn, reader);
}

}  // namespace th::registry
