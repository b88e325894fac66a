// Several workers and a real registry in one thread, on a virtual clock: messages take a moment,
// fills move segments one by one in memory, processes die, stop and come back, the server restarts.
//
//   World world;
//   std::vector<WorldNode*> trainer = world.JoinGroup("trainer", 2);
//   std::vector<WorldNode*> rollout = world.JoinGroup("rollout-1", 2);
//   world.PublishAll(trainer, "step-1");
//   world.UpdateAll(rollout);                       // runs until every rank has its result
//   EXPECT_EQ(rollout[0]->held_content(), "step-1");
//
// Rank r of a group holds the shard with layout r, unless told otherwise. What a rank writes into
// its buffer is derived from the label, so that the world knows what has to arrive: every segment
// that a reader accepts is compared with it, and the registry's own rules are checked after every
// event.
#ifndef TH_WORKER_SESSION_SESSION_WORLD_H_
#define TH_WORKER_SESSION_SESSION_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/reference_registry/registry.h"
#include "th/worker_session/world_node.h"

namespace th {

// One way, between any two processes.
inline constexpr absl::Duration kWorldLatency = absl::Milliseconds(1);
// One segment from one source to one reader.
inline constexpr absl::Duration kWorldSegmentTime = absl::Milliseconds(20);
// A source that has said nothing for this long is lost.
inline constexpr absl::Duration kWorldSilence = absl::Milliseconds(400);

// For the failure messages of tests: GoogleTest finds it by its name.
void PrintTo(const OperationDone& done, std::ostream* os);

class World {
 public:
  explicit World(RegistryLimits limits = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // ---- people's part
  // A process that joins and registers one buffer. Returns when the server has agreed.
  WorldNode* JoinRank(const RankName& name, uint32_t ranks);
  WorldNode* JoinRank(const RankName& name, uint32_t ranks, int layout);
  std::vector<WorldNode*> JoinGroup(const std::string& group, uint32_t ranks);
  // All ranks at once, until each has its result. Fails the test when that takes longer than
  // `limit`.
  std::vector<OperationDone> PublishAll(const std::vector<WorldNode*>& ranks,
                                        const std::string& label);
  std::vector<OperationDone> UpdateAll(const std::vector<WorldNode*>& ranks,
                                       const VersionSelector& selector = LatestVersion{});
  std::vector<OperationDone> UnpublishAll(const std::vector<WorldNode*>& ranks);
  // The same for calls that were begun one by one.
  std::vector<OperationDone> Await(const std::vector<WorldNode*>& ranks,
                                   const std::vector<CallId>& calls);
  CommandFinished RunCommandOf(WorldNode* node, const RunCommand& command);

  // ---- mishaps
  void Kill(WorldNode* node);  // its streams and transfers break
  void Stop(WorldNode* node);  // silent, and deaf until Continue
  void Continue(WorldNode* node);
  void BreakStream(WorldNode* node);
  void KillServer();
  void StartServer();  // with what was durable
  bool server_alive() const { return registry_ != nullptr; }
  Registry& registry() { return *registry_; }

  // ---- time
  absl::Time now() const { return now_; }
  void Run(absl::Duration duration);
  // False when it did not become true within `limit`.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(120));

  // ---- for the nodes
  void Post(absl::Duration delay, std::function<void()> event);
  // As Post, but kept while the process is stopped and dropped when it is dead.
  void PostTo(WorldNode* node, absl::Duration delay, std::function<void()> event);
  void OpenStream(WorldNode* node);
  void CloseStream(WorldNode* node);
  void ToServer(WorldNode* node, WorkerMessage message);
  WorldNode* FindWorker(WorkerId worker);
  TransferId NextTransfer() { return TransferId(++transfers_); }
  // What a segment of a version holds.
  static uint64_t Truth(const std::string& label, int layout, uint64_t segment);
  void CountCopy(const WorldNode& source) { ++segments_sent_[source.name().ToString()]; }
  uint64_t segments_sent_by(const WorldNode& source) {
    return segments_sent_[source.name().ToString()];
  }

 private:
  void Take(RegistryEffects effects);
  void Disconnected(ConnectionId connection);
  void RunServer(const std::function<RegistryEffects(Registry&)>& event);
  absl::Time NextEvent() const;
  void Step();

  RegistryLimits limits_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Epoch epoch_;
  DurableState durable_;
  std::unique_ptr<Registry> registry_;
  std::vector<std::unique_ptr<WorldNode>> nodes_;
  std::map<ConnectionId, WorldNode*> streams_;
  uint64_t connections_ = 0;
  uint64_t transfers_ = 0;
  uint64_t events_ = 0;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> queue_;
  std::map<std::string, uint64_t> segments_sent_;
};

}  // namespace th

#endif  // TH_WORKER_SESSION_SESSION_WORLD_H_
