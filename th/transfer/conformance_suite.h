// These tests state what every transport must do, whatever carries its bytes. A transport passes by
// instantiating the suite in a test of its own:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformanceTest, ::testing::Values(&NewTcpWorld));
//   INSTANTIATE_TEST_SUITE_P(Tcp, HeldReaderConformanceTest, ::testing::Values(&NewTcpWorld));
//
// The second suite holds a thread of the reader's while its source goes on; what moves both ends on
// one thread, as the fake does, cannot pass it.
#ifndef TH_TRANSFER_CONFORMANCE_SUITE_H_
#define TH_TRANSFER_CONFORMANCE_SUITE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "th/transfer/test_peers.h"
#include "th/transfer/transport.h"

namespace th::testing {

// A place where transports can reach each other.
class ConformanceWorld {
 public:
  virtual ~ConformanceWorld() = default;
  virtual std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) = 0;
  // An endpoint of this transport at which nobody listens.
  virtual Endpoint DeadEndpoint() = 0;
  // The transfers that a test makes to see that they leave nothing behind.
  virtual size_t many_transfers() const { return 1'000; }
};

class TransportConformanceTest
    : public ::testing::TestWithParam<std::unique_ptr<ConformanceWorld> (*)()> {
 protected:
  TransportConformanceTest();
  ~TransportConformanceTest() override;

  // Tells both transports of the memory of published_ and received_.
  void AttachMemory();
  // Anew, both ends with this limit.
  void SetMaxSegmentsQueued(uint32_t segments);
  // A reader's pull from holder_.
  std::unique_ptr<Pull> Open(PullSink* sink);
  // A shard of its own, published and pulled whole, is received as it is.
  void ExpectArrives(const TestShard::Spec& spec);
  // Lets `end` end a transfer while the reader's data thread is in each call of its sink in turn,
  // up to the one after which all has come; call 0 is before any. Nothing lands, is said or is left
  // behind after the close. Ends both transports.
  void ExpectEndsWellAtEachCall(size_t first_call, const std::function<void(Pull&)>& end);
  Endpoint SourceEndpoint() const { return source_->endpoints()[0]; }

  TransportLimits limits_;
  std::unique_ptr<ConformanceWorld> world_ = GetParam()();
  std::unique_ptr<Transport> source_;
  std::unique_ptr<Transport> reader_;
  TestShard published_{TestShard::Spec{}};
  TestShard received_{TestShard::Spec{}};
  TestHolder holder_{published_.store()};
  TestSink sink_{&received_};
  std::vector<std::unique_ptr<AttachedMemory>> attached_;
};

class HeldReaderConformanceTest : public TransportConformanceTest {};

}  // namespace th::testing

#endif  // TH_TRANSFER_CONFORMANCE_SUITE_H_
