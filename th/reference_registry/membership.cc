#include "th/reference_registry/membership.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/buffer_registration.h"
#include "th/reference_registry/models.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/claims.h"
#include "th/registry_state/holders.h"
#include "th/status/status_macros.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

absl::Status CheckFields(const JoinRequest& request, const RegistryLimits& limits) {
  TH_RETURN_IF_ERROR(ValidateName("run", request.key.run));
  TH_RETURN_IF_ERROR(ValidateName("model", request.key.model));
  TH_RETURN_IF_ERROR(ValidateName("group", request.name.group));
  if (request.ranks > limits.max_ranks) {
    return absl::ResourceExhaustedError(absl::StrCat("group ", request.name.group, " wants ",
                                                     request.ranks, " ranks, and max_ranks is ",
                                                     limits.max_ranks));
  }
  if (request.name.rank.value >= request.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", request.name.ToString(), " is outside its group of ", request.ranks, " ranks"));
  }
  bool long_address = request.endpoints.size() > kMaxEndpoints;
  for (const Endpoint& endpoint : request.endpoints) {
    long_address |=
        endpoint.address.size() > kMaxEndpointBytes || endpoint.site.size() > kMaxEndpointBytes;
    if (endpoint.transport.size() > kMaxTransportNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.name.ToString(), " has an endpoint whose transport has a name of ",
                       endpoint.transport.size(), " bytes, at most ", kMaxTransportNameBytes));
    }
  }
  if (!long_address) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(request.name.ToString(), " has more than ",
                                                 kMaxEndpoints, " endpoints, or one longer than ",
                                                 kMaxEndpointBytes, " bytes"));
}

const Group* FindGroup(const RegistryState& state, const JoinRequest& request) {
  const Model* model = FindModel(state, request.key);
  if (model == nullptr) return nullptr;
  auto found = model->groups.find(request.name.group);
  return found == model->groups.end() ? nullptr : &found->second;
}

// Returns the worker that holds the rank; null when none does.
Worker* HolderOfRank(const RegistryState& state, const JoinRequest& request) {
  const Group* group = FindGroup(state, request);
  if (group == nullptr) return nullptr;
  auto found = group->members.find(request.name.rank);
  return found == group->members.end() ? nullptr : found->second;
}

// "on node7": for people who look for the process.
std::string PlaceOf(const Worker& worker) {
  const Location& location = worker.location;
  const std::string& host = location.host_name.empty() ? location.host : location.host_name;
  return host.empty() ? "on an unknown host" : absl::StrCat("on host ", host);
}

std::string DescribeHolder(const Worker& holder) {
  return absl::StrCat("worker ", holder.id.value, " ", PlaceOf(holder), ", at ",
                      holder.endpoints.empty() ? "an unknown address" : holder.endpoints[0].address,
                      ", last heard at ", absl::FormatTime(holder.last_heard, absl::UTCTimeZone()));
}

absl::Status MayReplace(const Worker& holder) {
  if (TH_MUTATE(kReplaceLiveRank, holder.connection.has_value(), false)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", holder.name.ToString(), " is held by ", DescribeHolder(holder),
        ", whose stream is alive; stop that process, or start this one as another rank"));
  }
  return absl::OkStatus();
}

// Returns the member that the claim is of; null when it has ended or is unknown.
Worker* FindReturning(const RegistryState& state, const JoinRequest& request) {
  if (!request.resume.has_value()) return nullptr;
  return FindClaimed(state, *request.resume, HolderOfRank(state, request));
}

absl::Status MayResume(const RegistryState& state, const JoinRequest& request) {
  const ResumeClaim& claim = *request.resume;
  const Worker* known = FindReturning(state, request);
  if (known != nullptr) {
    if (known->name == request.name && known->group->model->key == request.key) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", claim.worker.value, " is ", known->name.ToString(), " of ",
                     known->group->model->key.ToString(), ", not ", request.name.ToString(), " of ",
                     request.key.ToString()));
  }
  const Worker* holder = HolderOfRank(state, request);
  if (holder != nullptr && StaysBefore(state, *holder, claim)) {
    return absl::AbortedError(absl::StrCat("worker ", claim.worker.value, " was replaced as rank ",
                                           request.name.ToString(), " by ", DescribeHolder(*holder),
                                           "; join again as a new process"));
  }
  if (claim.cluster == state.identity.cluster && claim.epoch_id == state.identity.epoch_id()) {
    return absl::AbortedError(absl::StrCat(
        "the membership of worker ", claim.worker.value, " as rank ", request.name.ToString(),
        " has ended: its lease ran out, it left or it was replaced; join again"));
  }
  return absl::OkStatus();
}

// Refuses a joiner that states another group size than a member that stays. A member that comes
// back replaces members with an earlier membership, so only later ones refuse it; a new process is
// refused by every member but the holder of its rank. While ranks may still come back, the refusal
// of a member that comes back is UNAVAILABLE: whoever refuses it may be replaced by another rank of
// its group.
absl::Status CheckGroupSize(const RegistryState& state, const JoinRequest& request) {
  const Group* group = FindGroup(state, request);
  if (group == nullptr || group->ranks == request.ranks) return absl::OkStatus();
  const bool comes_back = request.resume.has_value() && FindReturning(state, request) == nullptr;
  for (const auto& [rank, worker] : group->members) {
    if (rank == request.name.rank) continue;
    const bool gives_way = comes_back && !StaysBefore(state, *worker, *request.resume);
    if (TH_MUTATE(kFirstSizeCounts, gives_way, false)) continue;
    const std::string text =
        absl::StrCat("rank ", request.name.ToString(), " says that its group has ", request.ranks,
                     " ranks, and rank ", worker->name.ToString(), " says ", group->ranks,
                     "; start all ranks with the same number");
    return comes_back && state.adopting ? absl::UnavailableError(text)
                                        : absl::FailedPreconditionError(text);
  }
  return absl::OkStatus();
}

absl::Status HasRoom(const RegistryState& state, const JoinRequest& request) {
  const RegistryLimits& limits = state.limits;
  if (state.workers.size() >= limits.max_workers) {
    return absl::ResourceExhaustedError(absl::StrCat("the server has ", state.workers.size(),
                                                     " workers, and max_workers is ",
                                                     limits.max_workers));
  }
  return HasRoomForModel(state, request.key);
}

Group& EnsureGroup(Turn& turn, const JoinRequest& request) {
  Model& model = TakeModel(turn, request.key);
  auto [it, created] = model.groups.try_emplace(request.name.group);
  Group& group = it->second;
  if (created) {
    group.model = &model;
    group.name = request.name.group;
    group.ranks = request.ranks;
    group.generation = turn.state.last_ended_generation.Next();
  }
  return group;
}

// The model's record goes with its last group when it has nothing to remember.
void ForgetModelIfEmpty(Turn& turn, Model& model) {
  if (!model.groups.empty() || !model.versions.empty() || !model.commands.empty()) return;
  if (model.durable != DurableModel{} || turn.state.durable.models.contains(model.key)) return;
  ForgetModel(turn.state, model);
}

Deadline LeaseOf(const Worker& worker) {
  return {.at = worker.lease_at, .kind = DeadlineKind::kLease, .buffer = {worker.id, BufferId()}};
}

// Sets the deadline of the lease after the worker was last heard. Messages do not move the
// deadline; CheckLease sets it again if the worker was heard since.
void SetLease(Turn& turn, Worker& worker) {
  turn.state.deadlines.erase(LeaseOf(worker));
  worker.lease_at = worker.last_heard + turn.state.limits.lease;
  turn.state.deadlines.insert(LeaseOf(worker));
}

// Returns the lineage that a returning rank knows. Roll-backs by its own group count as known,
// unless the group had begun a newer generation than the rank's by then.
Lineage KnownLineage(const RegistryState& state, const DurableModel& durable,
                     const std::string& group, const ResumeClaim& claim) {
  Lineage known = claim.lineage;
  for (const DurableRollBack& roll_back : durable.roll_backs) {
    const bool own =
        roll_back.group == group && claim.group_generation >= roll_back.group_generation;
    if (own) known = std::max(known, roll_back.lineage);
  }
  return IsUpToDate(state, claim, known, durable) ? std::max(known, durable.lineage) : known;
}

// The workers that the joining one replaces: the holder of its rank and, where the group has
// another size, all members.
std::vector<Worker*> WorkersReplacedBy(const RegistryState& state, const JoinRequest& request) {
  std::vector<Worker*> replaced;
  const Group* group = FindGroup(state, request);
  if (group == nullptr) return replaced;
  for (const auto& [rank, worker] : group->members) {
    if (rank == request.name.rank || group->ranks != request.ranks) replaced.push_back(worker);
  }
  return replaced;
}

// Removes `old`. If its group has another size than the joiner states, removing the last member
// also removes the group's record.
void ReplaceWorker(Turn& turn, Worker& old, const JoinRequest& request) {
  Group& group = *old.group;
  const std::string why = old.name == request.name ? "it was replaced by a new process"
                                                   : absl::StrCat("its group has ", request.ranks,
                                                                  " ranks now, not ", group.ranks);
  ++turn.state.counters.workers_replaced;
  Note(turn, request.key, {EventKind::kWorkerReplaced, EventId(), old.name.ToString()},
       absl::StrCat("worker ", old.id.value, " ", PlaceOf(old), ": ", why));
  const bool other_size = group.ranks != request.ranks;
  // A member that comes back brings its part with it.
  const auto others =
      request.resume.has_value() ? OthersPublications::kStay : OthersPublications::kAreLost;
  RemoveWorker(turn, old, absl::AbortedError(why), others);
  if (other_size) ForgetIfEmpty(turn, group);
}

Worker& AddWorker(Turn& turn, Group& group, const JoinRequest& request, WorkerId id) {
  auto owned = std::make_unique<Worker>();
  Worker& worker = *owned;
  turn.state.workers[id] = std::move(owned);
  worker.id = id;
  worker.group = &group;
  worker.name = request.name;
  worker.last_heard = turn.now;
  const DurableModel& durable = group.model->durable;
  worker.lineage = request.resume.has_value()
                       ? KnownLineage(turn.state, durable, group.name, *request.resume)
                       : durable.lineage;
  worker.came_with = request.resume;
  group.members[request.name.rank] = &worker;
  SetLease(turn, worker);
  return worker;
}

void EndStream(Turn& turn, Worker& worker, absl::Status status) {
  if (!worker.connection.has_value()) return;
  turn.effects.close.push_back(*worker.connection);
  Send(turn, worker, Refused{.status = std::move(status), .epoch = turn.state.epoch});
  LoseStream(turn, worker);
}

// `leaving` ends in `left`: moves its readers to other sources where that is possible, and warns of
// last replicas.
void HearNotice(Turn& turn, Worker& leaving, absl::Duration left) {
  if (!leaving.leaving()) ++turn.state.counters.notices;
  Log(turn, absl::StrCat(leaving.group->model->key.ToString(), " rank=", leaving.name.ToString(),
                         " leaves in ", absl::FormatDuration(left)));
  WarnOfLastReplicas(turn, leaving, left);
  leaving.leaves_at = std::min(leaving.leaves_at, turn.now + left);
  ReindexAll(turn, leaving);
  for (const auto& [id, buffer] : leaving.buffers) {
    if (buffer.shard != nullptr) MoveReadersOf(turn, *buffer.shard, buffer.address);
  }
}

void TakeStream(Turn& turn, Worker& worker, const JoinRequest& request, ConnectionId connection) {
  if (worker.connection.has_value()) {
    EndStream(turn, worker, absl::AbortedError("this worker has come back on another stream"));
  }
  LoseStream(turn, worker);  // so that no index knows it under its old location
  worker.location = request.location;
  worker.endpoints = request.endpoints;
  worker.spot = request.spot;
  worker.offload_limit_bytes = request.offload_limit_bytes;
  const Model& model = *worker.group->model;
  if (!model.waiting_for_room.empty()) turn.to_review.insert(model.key);
  NoteHeard(turn.state, worker, turn.now);
  worker.connection = connection;
  turn.state.connections[connection] = &worker;
  const bool has_notice = request.leaves_in != absl::InfiniteDuration();
  if (!has_notice) worker.leaves_at = absl::InfiniteFuture();
  ReindexAll(turn, worker);
  if (has_notice) HearNotice(turn, worker, request.leaves_in);
}

void Greet(Turn& turn, const Worker& worker, const ProtocolHello& hello) {
  const StateIdentity& identity = turn.state.identity;
  Send(turn, worker,
       Joined{.hello = hello,
              .epoch = turn.state.epoch,
              .worker = worker.id,
              .group_generation = worker.group->generation,
              .lineage = worker.lineage,
              .key = DeriveWorkerKey(turn.state.secret, worker.id),
              .lease = turn.state.limits.lease,
              .progress_interval = turn.state.limits.progress_interval,
              .cluster = identity.cluster,
              .epoch_id = identity.epoch_id(),
              .secret = DeriveMembershipSecret(identity.key, worker.id, identity.epoch_id())});
}

void SendGroupChanged(Turn& turn, const Group& group, const RankName& cause, const Worker* except) {
  for (const auto& [rank, member] : group.members) {
    if (member == except) continue;
    Send(turn, *member, GroupChanged{.group_generation = group.generation, .rank = cause});
  }
}

// Ends pending operations with ABORTED ("rank <cause> <why>") and starts the numbering from 1 in
// `generation`. Sends GroupChanged to all members but `except`.
void BeginGeneration(Turn& turn, Group& group, const RankName& cause, absl::string_view why,
                     GroupGeneration generation, const Worker* except) {
  FailAllOperations(turn, group,
                    absl::AbortedError(absl::StrCat("rank ", cause.ToString(), " ", why,
                                                    "; all ranks must ask again")));
  RestartNumbering(group);
  group.generation = generation;
  group.counts_as_in = EpochId();
  SendGroupChanged(turn, group, cause, except);
}

constexpr absl::string_view kRegisteredAgain = "has registered its buffer again";

// One that no group of this name has had, in this epoch or before: the epoch is its high half.
GroupGeneration NewGeneration(const Turn& turn, const Group& group, GroupGeneration claimed) {
  return std::max({group.generation, claimed, turn.state.last_ended_generation}).Next();
}

void JoinFresh(Turn& turn, Group& group, Worker& worker) {
  const bool was_there_before = group.adopted || group.seen.contains(worker.name.rank);
  group.seen.insert(worker.name.rank);
  if (!was_there_before) return;
  BeginGeneration(turn, group, worker.name, kReplaced,
                  NewGeneration(turn, group, GroupGeneration()), &worker);
  for (auto& [name, replica] : group.replicas) {
    LosePublication(turn, replica, worker.name, kReplaced);
  }
}

constexpr absl::string_view kCountsOtherwise =
    "came back counting the group's operations otherwise than those before it";

// Reconciles the group's generation with that of a returning member of an earlier epoch:
//   first member of the group, and no results of its generation can have been forgotten here: the
//       group takes over its generation;
//   same generation, numbered by the same state: nothing changes;
//   older generation, while another member has returned and no operation has ended in the present
//       generation: nothing changes, and Apply sends it GroupChanged;
//   otherwise: the group begins a generation above both, and pending operations end with ABORTED.
// The last case includes the first member to return to a group of new processes: they count from
// the present generation on, and it does not. Equal generations are the same only if this state
// knows the epoch ids of both claims, or both have the same unknown one.
void Adopt(Turn& turn, Group& group, const Worker& worker, const ResumeClaim& claim) {
  const bool is_first = group.seen.empty();
  const bool has_others = std::exchange(group.adopted, true);
  const EpochId counts_as_in = IsKnown(turn.state, claim) ? EpochId() : claim.epoch_id;
  group.seen.insert(worker.name.rank);
  const bool results_may_be_forgotten = TH_MUTATE(
      kRunForgottenAgain, claim.group_generation <= turn.state.last_forgotten_results, false);
  if (is_first && !results_may_be_forgotten) {
    group.generation = claim.group_generation;
    group.counts_as_in = counts_as_in;
    return;
  }
  const bool same_numbering = has_others && claim.group_generation == group.generation &&
                              TH_MUTATE(kMixNumberings, counts_as_in == group.counts_as_in, true);
  const bool missed_nothing =
      TH_MUTATE(kBumpGroupGenerationForEveryRank,
                has_others && claim.group_generation < group.generation && !group.has_ended, false);
  if (!same_numbering && !missed_nothing) {
    BeginGeneration(turn, group, worker.name, kCountsOtherwise,
                    NewGeneration(turn, group, claim.group_generation), &worker);
  }
}

WorkerId FreshId(RegistryState& state) {
  return WorkerId((uint64_t{state.epoch.value} << 32) | state.next_worker_number++);
}

std::string HowLongSilent(const Turn& turn, const Worker& worker) {
  return absl::StrCat("its lease has ended: not heard for ",
                      absl::FormatDuration(turn.now - worker.last_heard));
}

}  // namespace

absl::StatusOr<JoinGroup> JoinGroup::Build(const RegistryState& state, ConnectionId connection,
                                           const JoinRequest& request) {
  const ProtocolHello own{.min_version = kMinProtocolVersion, .max_version = kProtocolVersion};
  TH_RETURN_IF_ERROR(AgreeOnVersion(own, request.hello).status());
  TH_RETURN_IF_ERROR(CheckFields(request, state.limits));
  if (request.resume.has_value()) TH_RETURN_IF_ERROR(CheckClaim(state, *request.resume));
  return JoinGroup{.connection = connection, .request = &request};
}

absl::Status JoinGroup::CanApply(const RegistryState& state) const {
  if (request->resume.has_value()) TH_RETURN_IF_ERROR(MayResume(state, *request));
  TH_RETURN_IF_ERROR(CheckGroupSize(state, *request));
  if (request->resume.has_value()) {
    if (FindReturning(state, *request) != nullptr) return absl::OkStatus();
  } else if (const Worker* holder = HolderOfRank(state, *request)) {
    return MayReplace(*holder);
  }
  return HasRoom(state, *request);
}

Worker& JoinGroup::Apply(Turn& turn) const {
  ++turn.state.counters.joins;
  const bool resumes = request->resume.has_value();
  Worker* worker = FindReturning(turn.state, *request);
  const bool known = worker != nullptr;
  if (!known) {
    // The worker keeps its id only if this state gave it and it is higher than those of all workers
    // that it replaces: the higher id wins a rank (StaysBefore), also after the next restart.
    bool keeps_id = resumes && IsKnown(turn.state, *request->resume);
    for (Worker* old : WorkersReplacedBy(turn.state, *request)) {
      keeps_id = keeps_id && old->id < request->resume->worker;
      ReplaceWorker(turn, *old, *request);
    }
    const WorkerId id = keeps_id ? request->resume->worker : FreshId(turn.state);
    worker = &AddWorker(turn, EnsureGroup(turn, *request), *request, id);
  }
  Group& group = *worker->group;
  group.ranks = request->ranks;
  TakeStream(turn, *worker, *request, connection);
  if (!resumes) JoinFresh(turn, group, *worker);
  if (resumes && !known) Adopt(turn, group, *worker, *request->resume);
  Greet(turn, *worker, request->hello);
  if (resumes && request->resume->group_generation != group.generation) {
    Send(turn, *worker, GroupChanged{.group_generation = group.generation, .rank = worker->name});
  }
  Log(turn, absl::StrCat(request->key.ToString(), " rank=", request->name.ToString(),
                         resumes ? " resumed as worker " : " joined as worker ", worker->id.value));
  return *worker;
}

absl::Duration RetryAfter(const RegistryState& state, const JoinRequest& request,
                          const absl::Status& refusal, absl::Time now) {
  const bool member = request.resume.has_value();
  if (member && absl::IsResourceExhausted(refusal)) return kRetryWithoutRoom;
  if (member && absl::IsUnavailable(refusal)) return kRetryOfOtherSize;
  if (member) return absl::InfiniteDuration();
  const Worker* holder = HolderOfRank(state, request);
  if (holder == nullptr || !holder->connection.has_value()) return absl::InfiniteDuration();
  if (!IsSilent(state, *holder, now)) return absl::InfiniteDuration();
  return std::max(state.limits.lease - (now - holder->last_heard), absl::Milliseconds(100));
}

void BumpGroupGeneration(Turn& turn, Group& group, Rank rank, absl::string_view why) {
  BeginGeneration(turn, group, {group.name, rank}, why,
                  NewGeneration(turn, group, GroupGeneration()), /*except=*/nullptr);
}

void BumpGroupGenerationIfAgain(Turn& turn, Worker& worker, const AnnouncedBuffer& announced) {
  const bool known = worker.buffers.contains(announced.buffer);
  if (known || HasNameOfItsOwn(announced.role)) return;
  Group& group = *worker.group;
  // Its worker may know what this server does not: it freed the one before while there was none.
  const bool again =
      TH_MUTATE(kForgetFreedBuffers, group.freed.Contains(announced.buffer_name), false) ||
      TH_MUTATE(kIgnoreCountsAfter, group.generation <= announced.counts_after, false);
  if (!again) return;
  BeginGeneration(turn, group, worker.name,
                  absl::StrCat("has registered buffer ", announced.buffer_name, " again"),
                  NewGeneration(turn, group, announced.counts_after), /*except=*/nullptr);
  // This rank does not hold what its group is taken to hold since an earlier epoch.
  const auto replica = group.replicas.find(announced.buffer_name);
  const bool held = replica != group.replicas.end() && replica->second.phase != ReplicaPhase::kIdle;
  if (!held) return;
  InvalidateReplica(turn, replica->second);
  LosePublication(turn, replica->second, worker.name, kRegisteredAgain);
}

void LoseStream(Turn& turn, Worker& worker) {
  if (!worker.connection.has_value()) return;
  turn.state.connections.erase(*worker.connection);
  worker.connection.reset();
  ReindexAll(turn, worker);
  AskOthersForLayouts(turn, worker);
}

void RemoveWorker(Turn& turn, Worker& worker, const absl::Status& cause,
                  OthersPublications others) {
  Group& group = *worker.group;
  const std::string why = absl::StrCat("is gone: ", cause.message());
  const std::string text = absl::StrCat("rank ", worker.name.ToString(), " ", why);
  Log(turn, absl::StrCat(group.model->key.ToString(), " worker ", worker.id.value, ": ", text));
  EndStream(turn, worker, absl::AbortedError(text));
  FailAllOperations(turn, group, absl::Status(cause.code(), text));
  for (auto& [id, buffer] : worker.buffers) DetachBuffer(turn, buffer, why, others);
  turn.state.deadlines.erase(LeaseOf(worker));
  group.members.erase(worker.name.rank);
  const WorkerId id = worker.id;  // a copy: the record dies next
  turn.state.workers.erase(id);
}

void ForgetIfEmpty(Turn& turn, Group& group) {
  if (!group.members.empty()) return;
  Model& model = *group.model;
  turn.state.last_ended_generation = std::max(turn.state.last_ended_generation, group.generation);
  if (group.adopted && group.has_ended) {
    turn.state.last_forgotten_results =
        std::max(turn.state.last_forgotten_results, group.generation);
  }
  const std::string name = group.name;  // a copy: the record dies next
  model.groups.erase(name);
  NoteUse(turn.state, model, turn.now);
  ForgetModelIfEmpty(turn, model);
}

absl::Status TakeNotice::CanApply(const RegistryState&) const {
  if (message.deadline > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError("a notice whose deadline has passed; to leave now, leave");
}

void TakeNotice::Apply(Turn& turn) const {
  HearNotice(turn, *FindWorker(turn.state, worker), message.deadline);
}

void CheckLease(Turn& turn, Worker& worker) {
  if (turn.now < worker.last_heard + turn.state.limits.lease) {
    EndLayoutWaits(turn, worker);
    return SetLease(turn, worker);
  }
  ++turn.state.counters.leases_expired;
  Group& group = *worker.group;
  ++group.model->totals.leases_expired;
  Note(turn, group.model->key, {EventKind::kLeaseExpired, EventId(), worker.name.ToString()},
       absl::StrCat("worker ", worker.id.value, " ", PlaceOf(worker), ": ",
                    HowLongSilent(turn, worker)));
  RemoveWorker(turn, worker, absl::UnavailableError(HowLongSilent(turn, worker)));
  ForgetIfEmpty(turn, group);
}

}  // namespace th::registry
