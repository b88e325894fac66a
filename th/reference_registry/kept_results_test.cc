// The results that a replica remembers cost a bounded amount of memory.
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {
namespace {

constexpr size_t kAttributeBytes = 100'000;
constexpr uint32_t kReplicas = 50;

class KeptResultsTest : public ::testing::Test {
 protected:
  KeptResultsTest() : model_(EnsureModel(state_, {"r1", "qwen3"})) {
    for (uint32_t i = 0; i < kReplicas; ++i) {
      Group& group = model_.groups[absl::StrCat("rollout-", i)];
      group.model = &model_;
      Replica& replica = group.replicas["weights"];
      replica.group = &group;
      replica.id = ReplicaId(i + 1);
    }
  }
  VersionInfo Publish(uint32_t number) {
    Version& version = model_.versions[VersionSequence::Of(Epoch(1), number)];
    version.model = &model_;
    version.info.sequence = VersionSequence::Of(Epoch(1), number);
    version.info.attributes["blob"] = std::string(kAttributeBytes, 'x');
    return version.info;
  }
  void EveryReplicaMovesTo(const VersionInfo& version, OperationNumber number) {
    for (auto& [name, group] : model_.groups) {
      FinishOperation(turn_, group.replicas["weights"], number,
                      {.outcome = UpdateOutcome::kMoved, .version = version});
    }
  }
  // Copies of attributes that all results of all replicas have together.
  size_t Copies() {
    std::set<const Attributes*> copies;
    for (auto& [name, group] : model_.groups) {
      for (const auto& [number, kept] : group.replicas["weights"].results) {
        EXPECT_TRUE(kept.finished.version.attributes.empty());
        EXPECT_EQ(kept.attributes->at("blob").size(), kAttributeBytes);
        copies.insert(kept.attributes.get());
      }
    }
    return copies.size();
  }

  RegistryState state_;
  RegistryEffects effects_;
  Turn turn_{state_, effects_, absl::UnixEpoch()};
  Model& model_;
};

TEST_F(KeptResultsTest, AreOneCopyOfAttributesAVersionHoweverManyReplicasRememberIt) {
  constexpr uint32_t kVersions = 70;
  for (uint32_t i = 1; i <= kVersions; ++i) EveryReplicaMovesTo(Publish(i), OperationNumber(i));
  EXPECT_EQ(Copies(), kMaxResultsKept) << "of versions that some result still names";
}

TEST_F(KeptResultsTest, GoWithTheLastResultThatNamesTheVersion) {
  EveryReplicaMovesTo(Publish(1), OperationNumber(1));
  const std::weak_ptr<const Attributes> kept = model_.versions.begin()->second.kept_attributes;
  EXPECT_FALSE(kept.expired());
  for (auto& [name, group] : model_.groups) RestartNumbering(group);
  EXPECT_TRUE(kept.expired());
}

TEST_F(KeptResultsTest, OutliveTheVersion) {
  const VersionInfo version = Publish(1);
  EveryReplicaMovesTo(version, OperationNumber(1));
  model_.versions.clear();
  EXPECT_EQ(Copies(), 1u);
  EveryReplicaMovesTo(version, OperationNumber(2));  // as an earlier epoch's result names it
  EXPECT_EQ(Copies(), 1u + kReplicas) << "nobody can tell that they are the same";
}

}  // namespace
}  // namespace th::registry
