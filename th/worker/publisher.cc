#include "th/worker/publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "th/memory/checkpoint_folder.h"
#include "th/protocol/error_fields.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/shard_partition.h"
#include "th/worker/reader_log.h"

namespace th {
namespace {

// UnpublishAll waits this much longer than the drain for the server's answer: ranks in other
// processes need not end at the same moment.
constexpr absl::Duration kUnpublishMargin = absl::Seconds(1);
// AwaitChecksums looks at this interval whether the server is away.
constexpr absl::Duration kServerPoll = absl::Milliseconds(50);
// Preempt waits this much longer than the notice: readers end the segment under way.
constexpr absl::Duration kPreemptMargin = absl::Seconds(2);

absl::StatusOr<TensorMemory> ReadShard(const CheckpointFolder& folder,
                                       std::vector<TensorSpec> tensors) {
  TH_ASSIGN_OR_RETURN(
      TensorMemory memory,
      TensorMemory::Allocate(std::move(tensors), TensorPlacement::kOneArena, ReadersMay::kAttach));
  for (const Tensor& tensor : memory.tensors()) {
    if (!tensor.alias_of.empty() || tensor.bytes == 0) continue;
    TH_RETURN_IF_ERROR(folder.Read(tensor.name, tensor.data));
  }
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Load(PublisherOptions options) {
  TH_ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(options.folder));
  const uint32_t shard_count = options.shards == 0 ? options.ranks : options.shards;
  const auto shards = SplitIntoShards(folder.tensors(), shard_count);
  if (!shards.ok()) {
    return absl::Status(shards.status().code(),
                        absl::StrCat(options.folder, ": ", shards.status().message(),
                                     "; each of --shards (or --ranks) needs a tensor"));
  }
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(options)));
  for (uint32_t rank = 0; rank < publisher->options_.ranks; ++rank) {
    if (publisher->options_.rank && *publisher->options_.rank != rank) continue;
    Member& member = publisher->members_.emplace_back();
    member.rank = rank;
    member.name = absl::StrCat(publisher->options_.client.group, "/", rank);
    TH_ASSIGN_OR_RETURN(member.memory, ReadShard(folder, (*shards)[rank % shard_count]));
  }
  return publisher;
}

absl::Status Publisher::Join() {
  for (Member& member : members_) {
    ClientOptions client = options_.client;
    client.rank = member.rank;
    client.ranks = options_.ranks;
    client.on_reader = LogReaders(member.name);
    TH_ASSIGN_OR_RETURN(member.client, Client::Join(std::move(client)));
    if (&member == &members_.front()) LogLeftOut(*member.client);
    TH_ASSIGN_OR_RETURN(member.weights,
                        member.client->Register(member.memory.tensors(), {.form = options_.form}));
  }
  return absl::OkStatus();
}

absl::StatusOr<VersionInfo> Publisher::Publish(absl::string_view label,
                                               const Attributes& attributes,
                                               absl::Duration timeout) {
  for (Member& member : members_) {
    TH_RETURN_IF_ERROR(
        member.weights.Publish(label, {.attributes = attributes, .timeout = timeout}));
  }
  VersionInfo version;
  for (Member& member : members_) {
    TH_ASSIGN_OR_RETURN(PublishResult result, member.weights.AwaitPublished());
    version = std::move(result.version);
  }
  return version;
}

void Publisher::Abandon() {
  for (Member& member : members_) (void)member.client->Leave();
}

absl::Status Publisher::AwaitSealed(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (Member& member : members_) {
    const absl::Status sealed = member.weights.AwaitSealed(LeftUntil(deadline));
    if (!sealed.ok()) return sealed;
  }
  return absl::OkStatus();
}

void Publisher::AwaitChecksums(Member& member, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration() || !member.client->connected()) return;
    const absl::Status sealed = member.weights.AwaitSealed(std::min(left, kServerPoll));
    if (!absl::IsDeadlineExceeded(sealed)) return;
  }
}

absl::Status Publisher::Drain(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (Member& member : members_) AwaitChecksums(member, deadline);
  absl::Status status = UnpublishAll(LeftUntil(deadline));
  for (Member& member : members_) status.Update(member.client->Leave());
  return status;
}

absl::Status Publisher::Preempt(absl::Time deadline) {
  absl::Status status;
  for (Member& member : members_) status.Update(member.client->Preempt(deadline));
  for (Member& member : members_) {
    (void)member.client->AwaitEnded(deadline - absl::Now() + kPreemptMargin);
  }
  for (Member& member : members_) status.Update(member.client->Leave());
  return status;
}

absl::Status Publisher::UnpublishAll(absl::Duration drain_timeout) {
  // Unpublish is an operation of the whole group: all ranks must begin before any can finish.
  // kDrop: a copy in host memory would end with this process, so making one is of no use.
  absl::BlockingCounter missing(static_cast<int>(members_.size()));
  absl::Mutex mutex;
  absl::Status status;
  for (Member& member : members_) {
    member.weights.UnpublishAsync({.drain_timeout = drain_timeout,
                                   .timeout = drain_timeout + kUnpublishMargin,
                                   .on_retention = OnRetention::kDrop},
                                  [&](absl::Status unpublished) {
                                    {
                                      absl::MutexLock lock(&mutex);
                                      status.Update(unpublished);
                                    }
                                    missing.DecrementCount();
                                  });
  }
  missing.Wait();
  return status;
}

bool Publisher::MayPublishAgain(const absl::Status& lost) {
  const std::string word = FieldsOf(lost).word;
  if (word == "PUBLICATION_LOST") return absl::IsUnavailable(lost);
  return word == "GROUP_CHANGED" || (word == "PUBLISH_FAILED" && absl::IsAborted(lost));
}

bool Publisher::IsOutOfStep(const absl::Status& refused) {
  return FieldsOf(refused).word == "PUBLISH_REFUSED" && absl::IsInvalidArgument(refused);
}

absl::Status Publisher::CheckHeld() {
  for (Member& member : members_) {
    TH_RETURN_IF_ERROR(member.client->membership());
    const absl::Status sealed = member.weights.AwaitSealed(absl::ZeroDuration());
    // The server has not confirmed the sums again.
    const bool away = absl::IsDeadlineExceeded(sealed);
    if (!sealed.ok() && !away) return sealed;
    if (std::exchange(member.server_away, away) == away) continue;
    LOG(INFO) << member.name
              << (away ? ": the server is away; what is published stays held"
                       : ": the server is back and knows what is published");
  }
  return absl::OkStatus();
}

uint64_t Publisher::bytes() const {
  uint64_t bytes = 0;
  for (const Member& member : members_) bytes += member.weights.bytes();
  return bytes;
}

uint64_t Publisher::bytes_sent() const {
  uint64_t bytes = 0;
  for (const Member& member : members_) bytes += member.weights.bytes_sent();
  return bytes;
}

std::vector<std::string> Publisher::ranks() const {
  std::vector<std::string> names;
  for (const Member& member : members_) names.push_back(member.name);
  return names;
}

}  // namespace th
