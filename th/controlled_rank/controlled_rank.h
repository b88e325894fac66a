// One rank of a demo or benchmark in a process of its own, told what to do in JSON lines.
//
// A command is a line {"do": NAME, ...}; each is answered by one line, in order: what it came to,
// or
// {"error": {"code", "message"}}. While an update or a stage runs there are lines {"event":
// "progress", at_s, version, bytes, total, source} before its answer. Moments (..._s) are seconds
// of the machine's monotonic clock.
//
//   join       server run model group rank ranks rate transports connections data_threads weights
//              load [host] [rack] [site] [copies] [stages] [gpu]
//              [checksums]
//              -> bytes, tensors: joins and registers the shard, with its content when `load`;
//                 `copies`: of the shard, that TensorHub may hold in this rank's host memory;
//                 `stages`: likewise one, into which versions are staged; `gpu`: the index of the
//                 GPU that has the weights, which are in host memory without
//   change     content              -> the weights become this content (rank_weights.h)
//   publish    label                -> version, publish_seconds, sealed_seconds
//   unpublish  [drain_seconds]      -> seconds
//   rollback   to key               -> version
//   update     version [timeout_seconds] [when_seeding: wait, skip or copy] [in_place]
//                                   -> outcome, version, event_id, reason, seconds, stall_seconds,
//                                      started_s, ended_s, bytes, reroutes, rerouted_bytes,
//                                      reread_bytes, corrupt_segments, peak_extra_bytes,
//                                      packing_overhead_bytes, sources
//   stage      version [timeout_seconds] [when_seeding: wait or skip]
//                                   -> as update: received beside the weights, which stay
//   apply      [timeout_seconds]    -> as update: what is staged is moved into the weights
//   sum                             -> sum, tensors: SHA-256 over all tensors' SHA-256
//   sums                            -> sums: {name: SHA-256}
//   stats                           -> bytes_sent, control_bytes, live_bytes, resident_bytes
//   scribble                        -> no byte of the weights is what it was
//   hoard                           -> a second copy of the weights is kept from here on
//   copy                            -> seconds: the weights are copied into spare memory, which it
//                                      keeps for the next copy
//   evict      bytes                -> caches hold none of the weights any more
//   meter-start                     -> from here on what this process uses is metered
//                                      (process_meter.h)
//   meter-read                      -> cpu_seconds, growth_bytes: since then
//   probe-send readers connections [host]
//                                   -> port: sends the weights, raw (raw_probe.h), to so many
//                                      readers
//   probe-read port connections [host]
//                                   -> started_s, ended_s: receives them, raw, into its own memory
//   probe-end                       -> the sending is over
//   share-copy                      -> path: the weights are copied into memory that others can map
//                                      (memory_probe.h)
//   read-copy  path threads         -> started_s, ended_s: copies them from there into its own
//   drop-copy                       -> that memory is freed
//   copy-gpu   from                 -> started_s, ended_s: the driver copies as many bytes over the
//                                      weights from other memory of the GPU `from`
//   leave                           -> leaves the group; an update, a stage or an apply under way
//                                      ends with CANCELLED, its answer comes first
//
// The process ends with its stdin. A rank is used by one thread.
#ifndef TH_CONTROLLED_RANK_CONTROLLED_RANK_H_
#define TH_CONTROLLED_RANK_CONTROLLED_RANK_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "th/client/client.h"
#include "th/command_line/json_lines.h"
#include "th/controlled_rank/device_weights.h"
#include "th/controlled_rank/rank_weights.h"
#include "th/processes/memory_probe.h"
#include "th/processes/process_meter.h"
#include "th/processes/raw_probe.h"

namespace th {

class ControlledRank {
 public:
  // Events go to `events`, which outlives it.
  explicit ControlledRank(JsonLineWriter* events) : events_(events) {}
  // The answer to a command.
  nlohmann::json Answer(const nlohmann::json& command);
  // Leaves the group, also while another thread is in Answer with an update, a stage or an
  // apply, which then ends.
  void LeaveNow();

 private:
  using Result = absl::StatusOr<nlohmann::json>;
  Result Do(const nlohmann::json& command);
  Result Join(const nlohmann::json& command);
  Result Change(const nlohmann::json& command);
  Result Publish(const nlohmann::json& command);
  Result Unpublish(const nlohmann::json& command);
  Result RollBack(const nlohmann::json& command);
  Result Update(const nlohmann::json& command);
  Result Stage(const nlohmann::json& command);
  Result Apply(const nlohmann::json& command);
  std::function<void(const UpdateProgress&)> ProgressWriter() const;
  Result Checksum(const nlohmann::json& command);
  Result Checksums(const nlohmann::json& command);
  Result Stats(const nlohmann::json& command);
  Result Scribble(const nlohmann::json& command);
  Result Hoard(const nlohmann::json& command);
  Result Copy(const nlohmann::json& command);
  Result Evict(const nlohmann::json& command);
  Result MeterStart(const nlohmann::json& command);
  Result MeterRead(const nlohmann::json& command);
  Result ProbeSend(const nlohmann::json& command);
  Result ProbeRead(const nlohmann::json& command);
  Result ProbeEnd(const nlohmann::json& command);
  Result ShareCopy(const nlohmann::json& command);
  Result ReadCopy(const nlohmann::json& command);
  Result DropCopy(const nlohmann::json& command);
  Result CopyGpu(const nlohmann::json& command);
  Result Leave(const nlohmann::json& command);

  // The tensors that the client has registered.
  const std::vector<Tensor>& Registered() const;
  // Host memory has what the GPU has, or the other way round; nothing to do without a GPU.
  absl::Status Download();
  absl::Status Upload();
  absl::Status RefuseOnGpu(const nlohmann::json& command) const;

  JsonLineWriter* const events_;
  std::optional<RankWeights> weights_;
  std::unique_ptr<DeviceWeights> on_gpu_;  // null: the weights are in host memory
  std::vector<char> hoarded_;
  std::vector<char> copy_;
  std::unique_ptr<Client> client_;
  WeightBuffer buffer_;
  std::optional<ProcessMeter> meter_;
  std::optional<MemoryStream> probe_memory_;
  std::unique_ptr<RawProbeSender> probe_;
  std::unique_ptr<SharedCopy> shared_;
};

// main() of controlled_rank, and of the file that has all programs: answers the commands of stdin
// on stdout until stdin ends. Returns the exit status.
int RunControlledRank(int argc, char** argv);

}  // namespace th

#endif  // TH_CONTROLLED_RANK_CONTROLLED_RANK_H_
