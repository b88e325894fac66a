// The report of a run of the demo: the table, the verdict, the JSON object.
//
// Plain data and pure functions; the scene (demo_scene.h) fills it in.
#ifndef TH_DEMO_DEMO_REPORT_H_
#define TH_DEMO_DEMO_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace th {

// One source's part of one reader's update.
struct DemoTransfer {
  std::string version;    // "2 (#1.2)"
  std::string reader;     // "rollout-1/0"
  std::string source;     // "trainer/2"
  std::string transport;  // "tcp"
  uint64_t bytes = 0;
  absl::Duration active;  // from the first to the last byte
  uint32_t reroutes = 0;  // of the reader in this update
};

// One version on its way to the readers that were there when it was published.
struct DemoDelivery {
  std::string version;
  uint64_t shard_bytes = 0;  // of the distinct shards, once
  uint64_t trainer_bytes_sent = 0;
  bool with_kill = false;  // a rollout group was killed in it
};

struct DemoReport {
  std::vector<DemoDelivery> deliveries;  // in order
  std::vector<DemoTransfer> transfers;
  std::vector<std::string> readers;  // every rank that ever read

  // The truth: SHA-256 sums of readers' tensors against the trainer's own.
  uint64_t shards_compared = 0;
  uint64_t tensors_compared = 0;
  std::vector<std::string> differences;  // a line each

  // The kill: at which fraction, whether the readers around it and the group itself, having
  // rejoined, ended with the right bytes. Without a fraction nobody was killed (the transfer was
  // too fast to see).
  bool kill_wanted = true;
  std::optional<double> killed_at_fraction;
  std::string killed_group;
  bool survivors_complete = false;
  bool rejoined = false;
  uint64_t rerouted_bytes = 0;

  std::string trainer_group = "trainer";
  std::vector<std::string> late_joiner_sources;  // ranks, each once
  uint64_t bytes_held_beyond_live = 0;
  absl::Duration stall;  // seconds that readers waited in Update, summed over ranks
  std::string error;     // what ended the scene early; empty: it ran to its end
};

// Bytes that the trainer sent over the bytes of the distinct shards.
double TrainerCopies(const DemoDelivery& delivery);
// The part of all received bytes that came from other rollouts.
double RelayedFraction(const DemoReport& report);
// The scene ran to its end, every comparison was made and none differed.
bool Verified(const DemoReport& report);
bool RecoveredFromKill(const DemoReport& report);

// The faults, a line each; empty when the demo's verdict is good.
std::vector<std::string> Faults(const DemoReport& report);

// The table of who filled from whom.
std::string TransferTable(const DemoReport& report);
// Copies that the trainer sent, relays, kill, late joiner, memory, stall: a line each.
std::string Summary(const DemoReport& report);
// One line.
std::string Verdict(const DemoReport& report);

nlohmann::json ToJson(const DemoReport& report);

}  // namespace th

#endif  // TH_DEMO_DEMO_REPORT_H_
