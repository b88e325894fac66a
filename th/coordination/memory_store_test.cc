#include "th/coordination/memory_store.h"

#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::th::testing::StatusIs;

TEST(MemoryStoreTest, KeepsTheLastWrite) {
  MemoryStore store({.epoch = Epoch(4)});
  DurableState state;
  state.models[{"r", "m"}].keep_latest = 2;
  ASSERT_OK(store.Write(state));
  EXPECT_EQ(store.written(), state);
  EXPECT_EQ(store.opened().epoch, Epoch(4));
}

TEST(MemoryStoreTest, BeginsAboveWhatWasHeard) {
  MemoryStore store({.epoch = Epoch(4)});
  const StateIdentity before = store.opened().identity;
  DurableState state;
  state.models[{"r", "m"}].keep_latest = 2;
  ASSERT_OK(store.BeginAbove(Epoch(9), state));
  EXPECT_EQ(store.opened().epoch, Epoch(10));
  EXPECT_EQ(store.opened().durable, state);
  EXPECT_EQ(store.opened().identity.cluster, before.cluster);
  EXPECT_NE(store.opened().identity.epoch_id(), before.epoch_id());
}

TEST(MemoryStoreTest, AFailedWriteChangesNothing) {
  MemoryStore store({});
  store.FailWith(absl::ResourceExhaustedError("full"));
  DurableState state;
  state.models[{"r", "m"}].keep_latest = 2;
  EXPECT_THAT(store.Write(state), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(store.written().models.empty());
}

}  // namespace
}  // namespace th
