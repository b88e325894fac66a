// The requests of a queue pair to its device, over queue pairs within this process.
#include "th/transfer/ibverbs/queue_pair.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/loopback_verbs.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/monotonic_clock.h"

namespace th::ibverbs {
namespace {

using ::testing::SizeIs;
using ::th::testing::IsOk;

FakeRdmaDevice Roce(const char* name, uint8_t host) {
  GidEntry gid;
  gid.gid[10] = gid.gid[11] = 0xff;
  gid.gid[12] = 10;
  gid.gid[15] = host;
  gid.type = GidType::kRoceV2;
  return {.name = name, .gids = {gid}};
}

class QueuePairTest : public ::testing::Test {
 protected:
  QueuePairTest() { fake_.devices = {Roce("source", 1), Roce("reader", 2)}; }

  void Connect() {
    auto devices = OpenRdmaDevices(LoopbackVerbs(fake_), {});
    ASSERT_THAT(devices, IsOk());
    auto source = QueuePair::Create(devices->usable[0], {.role = QueuePair::Role::kSource});
    auto reader = QueuePair::Create(devices->usable[1], {});
    ASSERT_THAT(source, IsOk());
    ASSERT_THAT(reader, IsOk());
    ASSERT_THAT((*source)->Connect((*reader)->address()), IsOk());
    ASSERT_THAT((*reader)->Connect((*source)->address()), IsOk());
    source_ = *std::move(source);
    reader_ = *std::move(reader);
    const std::vector<LoopbackPair> pairs = LoopbackPairs();
    ASSERT_THAT(pairs, SizeIs(2));
    of_source_ = pairs[0];
    of_reader_ = pairs[1];
  }

  FakeVerbs fake_;
  std::unique_ptr<QueuePair> source_, reader_;
  LoopbackPair of_source_, of_reader_;
};

TEST_F(QueuePairTest, HasAsManyReadsOutstandingAsBothDevicesCan) {
  fake_.devices[0].max_reads_started = 3;
  fake_.devices[0].max_reads_answered = 8;
  fake_.devices[1].max_reads_started = 16;
  fake_.devices[1].max_reads_answered = 5;
  Connect();
  EXPECT_EQ(of_reader_.attributes.max_rd_atomic, 8);
  EXPECT_EQ(of_source_.attributes.max_dest_rd_atomic, 8);
  EXPECT_EQ(of_source_.attributes.max_rd_atomic, 3);
  EXPECT_EQ(of_reader_.attributes.max_dest_rd_atomic, 3);
}

TEST_F(QueuePairTest, TakesTheSmallerMtu) {
  fake_.devices[0].mtu = IBV_MTU_4096;
  fake_.devices[1].mtu = IBV_MTU_2048;
  Connect();
  EXPECT_EQ(of_source_.attributes.path_mtu, IBV_MTU_2048);
  EXPECT_EQ(of_reader_.attributes.path_mtu, IBV_MTU_2048);
}

TEST_F(QueuePairTest, EndsKnowEachOtherAndGiveUpInTime) {
  Connect();
  EXPECT_EQ(of_reader_.attributes.dest_qp_num, source_->address().number);
  EXPECT_EQ(of_source_.attributes.dest_qp_num, reader_->address().number);
  EXPECT_EQ(of_reader_.attributes.rq_psn, source_->address().first_packet);
  EXPECT_EQ(of_source_.attributes.rq_psn, of_reader_.attributes.sq_psn);
  EXPECT_EQ(of_reader_.attributes.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(of_reader_.attributes.timeout, 16);   // 268 ms
  EXPECT_EQ(of_reader_.attributes.retry_cnt, 6);  // 7 is "for ever" to some devices
  EXPECT_EQ(of_reader_.attributes.ah_attr.is_global, 1);
}

TEST_F(QueuePairTest, OnlyTheSourcesMemoryCanBeRead) {
  Connect();
  EXPECT_EQ(of_source_.access, unsigned{IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(of_reader_.access, 0U);
}

TEST_F(QueuePairTest, AsksForNoMoreCompletionsThanTheDeviceHas) {
  fake_.devices[1].max_completions = 8;
  Connect();
  EXPECT_EQ(of_reader_.completions, 8);
  EXPECT_EQ(of_reader_.capacity.max_send_wr, 8U);
  fake_.devices[1].max_completions = 4096;
  source_.reset();
  reader_.reset();
  Connect();
  EXPECT_EQ(of_reader_.capacity.max_send_wr, 128U);
}

}  // namespace
}  // namespace th::ibverbs
