#include "th/simulator/server_watch.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// A source that failed a reader is not given to it again before this, whatever failed. A little
// less than the server's kRetryPause of 200 ms; both clocks run from what the server heard.
constexpr absl::Duration kMinRetryPause = absl::Milliseconds(150);

// How an end is told that was of the worker's own time to join.
constexpr absl::string_view kNoServerAnswered = "SERVER_UNREACHABLE";

bool WasWithdrawn(const DurableState& durable, const ModelKey& key, const VersionInfo& version) {
  const auto model = durable.models.find(key);
  if (model == durable.models.end()) return false;
  return std::any_of(model->second.roll_backs.begin(), model->second.roll_backs.end(),
                     [&](const DurableRollBack& roll_back) {
                       return version.lineage < roll_back.lineage &&
                              version.sequence > roll_back.to;
                     });
}

}  // namespace

void ServerWatch::Began() {
  unpublishes_.clear();
  drained_.clear();
  published_.clear();
  failed_at_.clear();
  assigned_.clear();
  resumed_.clear();
  roots_.clear();
  claimed_.clear();
  generations_.clear();
}

void ServerWatch::LostWhatIsNotIn(const StateIdentity& identity, const DurableState& forgotten) {
  for (const auto& [key, model] : forgotten.models) {
    forgotten_ = std::max(forgotten_, model.lineage);
  }
  const std::vector<EpochId>& epoch_ids = identity.epoch_ids;
  std::erase_if(members_, [&](const auto& entry) {
    return std::find(epoch_ids.begin(), epoch_ids.end(), entry.second) == epoch_ids.end();
  });
}

void ServerWatch::NoteJoined(const SimulatedWorker& to, const Joined& joined) {
  members_[&to] = joined.epoch_id;
  const auto [joined_at, fresh] = joined_at_.try_emplace(&to, JoinedAt{.first = cluster_->now()});
  joined_at->second.last = cluster_->now();
  if (fresh) NoteLineageSent(to, forgotten_);
  lapsed_.erase(&to);
  put_out_.erase(&to);
}

void ServerWatch::NoteHeard(const SimulatedWorker& from) {
  const auto [heard_at, first] = heard_at_.try_emplace(&from, cluster_->now());
  const absl::Duration silence = cluster_->now() - heard_at->second;
  if (!first && silence >= cluster_->spec().registry.lease) lapsed_.insert(&from);
  heard_at->second = cluster_->now();
}

bool ServerWatch::HasRival(const SimulatedWorker& worker) const {
  const absl::Time joined = joined_at_.at(&worker).last;
  bool is_later = false;
  for (const auto& other : cluster_->workers()) {
    if (other.get() == &worker) {
      is_later = true;
      continue;
    }
    const auto other_joined = joined_at_.find(other.get());
    const bool took_over = other_joined != joined_at_.end() && other_joined->second.last > joined;
    const bool may_have_it = is_later || took_over || other->alive();
    if (may_have_it && other->spec().name == worker.spec().name) return true;
  }
  return false;
}

void ServerWatch::JudgeReplaced(const SimulatedWorker& worker) const {
  const absl::Time came_back = joined_at_.at(&worker).last;
  const auto displaces = [&](const auto& entry) {
    const auto& [other, joined] = entry;
    return other != &worker && other->spec().name == worker.spec().name &&
           joined.first > joined_at_.at(&worker).first && joined.first < came_back;
  };
  cluster_->checker().Expect(std::any_of(joined_at_.begin(), joined_at_.end(), displaces),
                             "was replaced while its stream stood", worker.Name());
}

bool ServerWatch::HasLapsed(const SimulatedWorker& worker) const {
  const auto heard = heard_at_.find(&worker);
  const bool silent = heard == heard_at_.end() || lapsed_.contains(&worker) ||
                      cluster_->now() - heard->second >= cluster_->spec().registry.lease;
  return silent && members_.contains(&worker);
}

void ServerWatch::JudgeEnd(const SimulatedWorker& worker) const {
  if (!joined_at_.contains(&worker) || HasRival(worker)) return;
  // It has not heard that it joined, and gave up after its own time: nobody has put it out.
  if (absl::StrContains(worker.ended()->status.message(), kNoServerAnswered)) return;
  if (HasLapsed(worker) || put_out_.contains(&worker)) return;
  const auto lies = [&](const auto& other) {
    return other->says_falsely() && other->spec().name.group == worker.spec().name.group;
  };
  if (std::any_of(cluster_->workers().begin(), cluster_->workers().end(), lies)) return;
  cluster_->checker().Violated(absl::StrCat(
      worker.Name(),
      " is put out, and nobody else is that rank: ", worker.ended()->status.ToString()));
}

void ServerWatch::NoteLineageSent(const SimulatedWorker& to, Lineage lineage) {
  Lineage& reported = reported_[to.spec().name.group];
  reported = std::max(reported, lineage);
}

void ServerWatch::Heard(const SimulatedWorker& from, const WorkerMessage& message,
                        Outcome outcome) {
  NoteHeard(from);
  const bool announces = std::holds_alternative<JoinRequest>(message) ||
                         std::holds_alternative<RegisterBuffer>(message);
  if (announces) {
    // Its fills may begin anew, without saying which: what failed may be given to them again.
    std::erase_if(failed_at_,
                  [&](const auto& entry) { return entry.first.update.worker == &from; });
    if (const auto* join = std::get_if<JoinRequest>(&message)) NoteSources(from, *join);
    if (const auto* buffer = std::get_if<RegisterBuffer>(&message)) NoteHeld(from, buffer->buffer);
  } else if (const auto* start = std::get_if<StartOperation>(&message)) {
    NoteStart(from, *start);
  } else if (std::holds_alternative<Leave>(message)) {
    cluster_->checker().Left(&from);
  } else if (const auto* done = std::get_if<RankDone>(&message)) {
    if (unpublishes_.contains({&from, done->key})) NoteDrained(from, done->key);
  } else if (const auto* failed = std::get_if<SourceFailed>(&message)) {
    const auto given = assigned_.find({{&from, failed->key}, failed->source});
    if (!outcome.source_failed || given == assigned_.end()) return;
    failed_at_[{{&from, failed->key}, failed->source, given->second}] = cluster_->now();
  } else if (const auto* sealed = std::get_if<ShardSealed>(&message)) {
    // A refused one is no publisher's claim: the rank may come to publish the true content.
    if (outcome.refused) return;
    claimed_.try_emplace({{from.session().worker(), sealed->buffer}, sealed->version},
                         sealed->root);
  }
}

void ServerWatch::NoteStart(const SimulatedWorker& from, const StartOperation& start) {
  // An operation that it began before it heard that its group counts anew has a number of the old
  // count.
  if (start.group_generation < generations_[&from]) return;
  const OperationOf operation = {&from, start.key};
  if (start.kind == OperationKind::kPublish) NotePublished(from, start.key);
  if (start.kind == OperationKind::kUnpublish) {
    unpublishes_.insert(operation);
  } else {
    unpublishes_.erase(operation);  // its group counted anew: the number is another operation's
  }
}

void ServerWatch::NoteHeld(const SimulatedWorker& from, const AnnouncedBuffer& announced) {
  if (announced.held.has_value()) drained_.erase({&from, announced.buffer});
}

// Records the sources that the worker has pulled from since before this join.
void ServerWatch::NoteSources(const SimulatedWorker& from, const JoinRequest& join) {
  std::erase_if(resumed_, [&](const auto& entry) { return entry.first.worker == &from; });
  if (!join.resume.has_value()) {  // another process, with other buffers
    std::erase_if(drained_, [&](const auto& entry) { return entry.first.worker == &from; });
  }
  for (const AnnouncedBuffer& announced : join.buffers) {
    NoteHeld(from, announced);
    if (!announced.held.has_value()) continue;
    for (const BufferAddress& source : announced.held->sources) {
      resumed_.insert({{&from, announced.buffer}, source});
    }
  }
}

// A buffer is frozen and readable once its rank has asked to publish.
void ServerWatch::NotePublished(const SimulatedWorker& worker, const OperationKey& publish) {
  OperationNumber& last = published_[{&worker, publish.buffer}];
  last = std::max(last, publish.number);
  const auto drained = drained_.find({&worker, publish.buffer});
  if (drained != drained_.end() && drained->second < publish.number) drained_.erase(drained);
}

void ServerWatch::NoteDrained(const SimulatedWorker& worker, const OperationKey& unpublish) {
  const auto published = published_.find({&worker, unpublish.buffer});
  if (published != published_.end() && published->second > unpublish.number) return;
  OperationNumber& last = drained_[{&worker, unpublish.buffer}];
  last = std::max(last, unpublish.number);
}

void ServerWatch::NoteEnd(const SimulatedWorker& to, const OperationFinished& finished) {
  if (finished.kind == OperationKind::kUnpublish) {
    unpublishes_.erase({&to, finished.key});
    if (!finished.must_offload) NoteDrained(to, finished.key);
    return;
  }
  const bool published = finished.kind == OperationKind::kPublish && finished.status.ok();
  if (published) NotePublished(to, finished.key);
}

// In another generation of its group operations are numbered from 1 again.
void ServerWatch::BumpGroupGeneration(const SimulatedWorker& worker, GroupGeneration generation) {
  if (std::exchange(generations_[&worker], generation) == generation) return;
  std::erase_if(unpublishes_, [&](const OperationOf& entry) { return entry.worker == &worker; });
  std::erase_if(published_, [&](const auto& entry) { return entry.first.worker == &worker; });
  for (auto& [buffer, unpublish] : drained_) {
    if (buffer.worker == &worker) unpublish = OperationNumber();
  }
}

void ServerWatch::Said(const SimulatedWorker& to, const ServerMessage& message,
                       const DurableState& durable) {
  if (const auto* assigned = std::get_if<AssignSources>(&message)) {
    JudgeSources(to, *assigned);
  } else if (const auto* known = std::get_if<RootKnown>(&message)) {
    roots_.try_emplace({known->version, known->shard.layout}, known->shard.root);
  } else if (const auto* resolved = std::get_if<OperationResolved>(&message)) {
    JudgeResolved(to, *resolved, durable);
  } else if (const auto* finished = std::get_if<OperationFinished>(&message)) {
    JudgeFinished(to, *finished);
  } else if (const auto* joined = std::get_if<Joined>(&message)) {
    NoteJoined(to, *joined);
    NoteLineageSent(to, joined->lineage);
    BumpGroupGeneration(to, joined->group_generation);
  } else if (const auto* changed = std::get_if<GroupChanged>(&message)) {
    BumpGroupGeneration(to, changed->group_generation);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    const bool for_good = refused->retry_after == absl::InfiniteDuration();
    if (for_good && HasLapsed(to)) put_out_.insert(&to);
  } else if (const auto* command = std::get_if<CommandFinished>(&message)) {
    NoteLineageSent(to, command->lineage);
  }
}

void ServerWatch::JudgeSources(const SimulatedWorker& to, const AssignSources& assigned) {
  const Digest layout = cluster_->LayoutOf(to.spec().shard)->digest();
  const OperationOf update = {&to, assigned.key};
  for (const AssignedSource& source : assigned.sources) {
    const SimulatedWorker* worker = cluster_->FindWorker(source.endpoints.front().address);
    const auto violated = [&](absl::string_view which) {
      cluster_->checker().Violated(
          absl::StrCat(to.Name(), " is given ", worker->Name(), ", which ", which));
    };
    const bool drained = drained_.contains({worker, source.buffer.buffer});
    if (drained && !Pulls(update, source) && !worker->says_falsely()) {
      violated("has let go");
    }
    if (HasJustFailed(update, source)) {
      violated("has just failed it");
    }
    if (HasOtherChecksums(source, assigned.version, layout)) {
      violated("has other sums than the version");
    }
    cluster_->checker().Expect(!worker->IsStreaming(source.buffer.buffer),
                               "is given a source that keeps nothing", to.Name());
    assigned_[{update, source.buffer}] = source.generation;
  }
}

bool ServerWatch::Pulls(const OperationOf& update, const AssignedSource& source) const {
  if (resumed_.contains({{update.worker, update.key.buffer}, source.buffer})) return true;
  const auto before = assigned_.find({update, source.buffer});
  return before != assigned_.end() && before->second == source.generation;
}

bool ServerWatch::HasJustFailed(const OperationOf& update, const AssignedSource& source) const {
  const auto failed = failed_at_.find({update, source.buffer, source.generation});
  return failed != failed_at_.end() && cluster_->now() - failed->second < kMinRetryPause;
}

bool ServerWatch::HasOtherChecksums(const AssignedSource& source, VersionSequence version,
                                    const Digest& layout) const {
  const auto root = roots_.find({version, layout});
  const auto claimed = claimed_.find({source.buffer, version});
  return source.publisher && root != roots_.end() && claimed != claimed_.end() &&
         claimed->second != root->second;
}

void ServerWatch::JudgeResolved(const SimulatedWorker& to, const OperationResolved& resolved,
                                const DurableState& durable) {
  if (unpublishes_.contains({&to, resolved.key})) return NoteDrained(to, resolved.key);
  drained_.erase({&to, resolved.key.buffer});  // it fills
  if (!WasWithdrawn(durable, to.spec().key, resolved.version)) return;
  cluster_->checker().Violated(absl::StrCat(
      to.Name(), " is to move to ", resolved.version.ToString(), ", which was rolled back"));
}

void ServerWatch::JudgeFinished(const SimulatedWorker& to, const OperationFinished& finished) {
  const bool published = finished.kind == OperationKind::kPublish && finished.status.ok();
  const Lineage reported = reported_[to.spec().name.group];
  if (published && finished.version.lineage > reported && to.buffer_id() == finished.key.buffer) {
    cluster_->checker().Violated(absl::StrCat(to.Name(), " publishes ", finished.version.ToString(),
                                              " into lineage ", finished.version.lineage.value,
                                              " and was sent only lineage ", reported.value));
  }
  NoteLineageSent(to, finished.lineage);
  NoteEnd(to, finished);
  // The buffer fills the next version from the sources that it is told.
  std::erase_if(resumed_, [&](const auto& entry) {
    return entry.first == BufferOf{&to, finished.key.buffer};
  });
  std::erase_if(assigned_, [&](const auto& entry) {
    return entry.first.first == OperationOf{&to, finished.key};
  });
}

}  // namespace th
