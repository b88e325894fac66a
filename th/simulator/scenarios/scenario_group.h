// One group of a scenario: its ranks' processes through all their lives, one call at a time, and
// the account of what its ranks wait for and receive.
//
// Callbacks run once, from the event queue, never within the call that caused them. Not
// thread-safe.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_GROUP_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_GROUP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/cluster.h"
#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/scenario_result.h"
#include "th/simulator/scenarios/stall_clock.h"

namespace th {

// Where every rank of a scenario runs, by its name ("rollout-1/0").
using ScenarioPlaces = std::map<std::string, Location>;

class ScenarioGroup {
 public:
  // How a call ended for the group.
  struct Outcome {
    bool well = false;   // for every rank
    bool moved = false;  // an update: the group has other bytes than before
    bool available = true;
    bool seeding = false;  // not available, and on its way into the group's site
    std::string label;
  };

  // All outlive the group. `number` is its place in the family.
  ScenarioGroup(Cluster* cluster, const Scenario* scenario, const ScenarioFamily* family,
                size_t number, const ScenarioPlaces* places);

  const std::string& name() const { return name_; }
  const ScenarioFamily& family() const { return *family_; }
  // From a version's publication, where `updates` says so.
  absl::Duration DelayOf(const ScenarioUpdates& updates) const {
    return updates.delay + static_cast<int64_t>(number_) * updates.stagger;
  }

  // Starts every rank that does not live; `ready` when all can be called.
  void Join(std::function<void()> ready);
  bool joined() const { return joined_; }
  bool joining() const { return ready_ != nullptr || reporting_ready_; }
  bool CanCall() const;  // every rank lives and is ready, and no call goes on
  bool calling() const { return waiting_ > 0 || ending_; }

  // `verb` on every rank; `done` when every rank has its end, or is dead. From now on the ranks
  // wait, first for `cause`; with `counts` false their clocks stand still. CanCall must hold.
  void Call(StallCause cause, bool counts, const std::function<void(SimulatedWorker*)>& verb,
            std::function<void(const Outcome&)> done);

  // Clocks beside a call's.
  void BeginStall(StallCause cause);
  void EndStall();
  // Ranks whose calls end well go on waiting for kMembers until EndStall.
  void WaitForMembers() { waits_for_members_ = true; }

  // ---- events; nullopt: all ranks
  void Leave(std::optional<uint32_t> rank);
  void Preempt(std::optional<uint32_t> rank, absl::Duration notice);
  void Kill(std::optional<uint32_t> rank);
  void Crash(std::optional<uint32_t> rank);
  void Stop(std::optional<uint32_t> rank, absl::Duration lasting);

  // The account so far; stalls that go on count until now.
  void AppendResults(ScenarioResult* result) const;

 private:
  struct Member {
    SimulatedWorker* worker = nullptr;
    bool calling = false;
    StallClock clock;
    RankResult result;
    std::map<std::string, size_t> spans;  // of this call, by source; places in result.spans
    absl::Time waits_for_bytes_since;
  };

  void Start(Member* member, uint32_t rank);
  void Listen(Member* member);
  void HandleDone(Member* member, const OperationDone& done);
  void HandleAccepted(Member* member, const std::string& source);
  void End(Member* member, bool well);
  void ReportReady();
  absl::Duration SinceStart(absl::Time time) const { return time - absl::UnixEpoch(); }
  void OnRanks(std::optional<uint32_t> rank, const std::function<void(Member*)>& act);

  Cluster* const cluster_;
  const Scenario* const scenario_;
  const ScenarioFamily* const family_;
  const size_t number_;
  const std::string name_;
  const ScenarioPlaces* const places_;
  std::vector<Member> members_;
  bool joined_ = false;
  std::function<void()> ready_;
  bool reporting_ready_ = false;  // it was posted
  size_t waiting_ = 0;
  bool ending_ = false;  // the end was posted
  bool counts_ = true;
  bool waits_for_members_ = false;
  Outcome outcome_;
  std::function<void(const Outcome&)> done_;
  std::array<uint64_t, kDistances> bytes_over_ = {};
};

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_GROUP_H_
