#include "th/simulator/random_runs/false_message.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr uint64_t kSegmentsThatNobodyHas = 1'000'000;

// The key of the operation under way, or of one before or after it.
OperationKey KeyNear(SeededRandom* random, const SimulatedWorker& worker) {
  OperationKey key = worker.newest_operation();
  key.buffer = worker.buffer_id();
  const uint64_t place = random->Below(6);
  if (place == 0 && key.number.value > 0) key.number.value -= 1;
  if (place == 1) key.number.value += 1;
  if (place == 2) key.number.value += 2;
  return key;
}

StartOperation FalseStart(SeededRandom* random, const SimulatedWorker& worker) {
  StartOperation start;
  start.key = KeyNear(random, worker);
  start.timeout = kTimeout;
  switch (random->Below(3)) {
    case 0:
      start.kind = OperationKind::kPublish;
      start.label =
          VersionLabel::Parse(absl::StrCat("invented-", worker.Name(), "-", random->Next()))
              .value();
      break;
    case 1:
      start.kind = OperationKind::kUnpublish;
      break;
    default:
      start.kind = OperationKind::kUpdate;
  }
  return start;
}

SegmentSet TooManySegments(const SimulatedWorker& worker) {
  SegmentSet segments;
  segments.Add(
      {SegmentIndex(0), SegmentIndex(worker.buffer().segment_count() + kSegmentsThatNobodyHas)});
  return segments;
}

}  // namespace

WorkerMessage DrawFalseMessage(SeededRandom* random, const SimulatedWorker& worker) {
  const OperationKey key = KeyNear(random, worker);
  const VersionSequence version = worker.session().buffer_version(worker.buffer_id()).sequence;
  switch (random->Below(10)) {
    case 0:
      return ReadyToFill{key, worker.session().buffer_generation(worker.buffer_id()).Next()};
    case 1:
    case 2:
      return RankDone{key, 0};
    case 3:
      return RankFailed{key, absl::InternalError("invented"), false};
    case 4:
      return ShardSealed{worker.buffer_id(), version, RootOfChecksums({random->Next()})};
    case 5:
      return FillProgress{key, version, TooManySegments(worker)};
    case 6:
      return BufferReset{worker.buffer_id()};
    case 7:
      return SourceFailed{
          key, AssignmentId(1), {WorkerId(1), BufferId(1)}, SourceFailure::kCorrupt, "invented"};
    case 8:
      return FalseStart(random, worker);
    default: {
      JoinRequest again;
      again.key = worker.spec().key;
      again.name = worker.spec().name;
      again.ranks = worker.spec().ranks + 1;
      return again;
    }
  }
}

}  // namespace th
