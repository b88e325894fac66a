#include "th/simulator/simulated_process.h"

#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/simulator/event_queue.h"
#include "th/topology/location.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Process : public SimulatedProcess {
 public:
  explicit Process(EventQueue* queue) : SimulatedProcess(queue, Location()) {}
  using SimulatedProcess::SetAlive;
  using SimulatedProcess::SetStopped;

 private:
  void HandleWake() override {}
};

class SimulatedProcessTest : public ::testing::Test {
 protected:
  SimulatedEvent Note(int number) {
    return [this, number] { noted_.push_back(number); };
  }
  void RunAll() {
    while (queue_.next() != absl::InfiniteFuture()) queue_.RunNext();
  }

  EventQueue queue_{absl::UnixEpoch()};
  Process process_{&queue_};
  std::vector<int> noted_;
};

TEST_F(SimulatedProcessTest, WhatHappensToAStoppedProcessWaitsInOrder) {
  process_.SetStopped(true);
  process_.RunOrHold(Note(1));
  process_.RunOrHold(Note(2));
  RunAll();
  EXPECT_THAT(noted_, IsEmpty());
  process_.SetStopped(false);
  RunAll();
  EXPECT_THAT(noted_, ElementsAre(1, 2));
}

TEST_F(SimulatedProcessTest, WhatComesAtTheMomentWhenItGoesOnComesAfterwards) {
  process_.SetStopped(true);
  process_.RunOrHold(Note(1));
  process_.Post(absl::ZeroDuration(), Note(2));
  process_.SetStopped(false);
  RunAll();
  EXPECT_THAT(noted_, ElementsAre(1, 2));
}

TEST_F(SimulatedProcessTest, OneThatIsStoppedAgainMeanwhileKeepsTheRest) {
  process_.SetStopped(true);
  process_.RunOrHold([this] { process_.SetStopped(true); });
  process_.RunOrHold(Note(1));
  process_.SetStopped(false);
  RunAll();
  EXPECT_THAT(noted_, IsEmpty());
  process_.SetStopped(false);
  RunAll();
  EXPECT_THAT(noted_, ElementsAre(1));
}

TEST_F(SimulatedProcessTest, WhatADeadProcessHasNotRunIsLost) {
  process_.SetStopped(true);
  process_.RunOrHold([this] { process_.SetAlive(false); });
  process_.RunOrHold(Note(1));
  process_.SetStopped(false);
  RunAll();
  process_.RunOrHold(Note(2));
  EXPECT_THAT(noted_, IsEmpty());
}

}  // namespace
}  // namespace th
