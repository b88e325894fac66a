// A transport in memory, with the faults that tests need. One thread stands for the network; each
// step moves one segment, so that transfers interleave.
//
//   FakeNetwork network;
//   auto source = network.NewTransport(limits), reader = network.NewTransport(limits);
//   network.CorruptNext(source->endpoints()[0].address, SegmentIndex(3));
//
// The network outlives its transports.
#ifndef TH_TRANSFER_FAKE_TRANSPORT_H_
#define TH_TRANSFER_FAKE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "th/transfer/task_thread.h"
#include "th/transfer/transport.h"

namespace th::testing {

class FakeNetwork {
 public:
  FakeNetwork();
  ~FakeNetwork();

  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits);

  // ---- faults, of the source at `address`; any thread
  // The next copy of `segment` that it sends has a bit flipped.
  void CorruptNext(const std::string& address, SegmentIndex segment);
  // Sends no segment beyond this many, and no sign of life, until it is let go on with more.
  void FallSilentAfter(const std::string& address, uint64_t segments);
  // The list of sums that it sends is wrong.
  void ForgeListOf(const std::string& address);
  // No source lists its sums, as those of an older release.
  void ListNoChecksums();
  // Dies: what is open breaks, nothing can be opened.
  void Kill(const std::string& address);

 private:
  friend class FakeTransport;
  friend struct FakePull;
  struct State;

  TaskThread& thread();
  // Runs `task` on the network's thread and waits for it.
  void RunAndWait(std::function<void()> task);

  const std::unique_ptr<State> state_;
};

}  // namespace th::testing

#endif  // TH_TRANSFER_FAKE_TRANSPORT_H_
