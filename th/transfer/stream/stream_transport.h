// A transport over connected sockets that carry a stream of bytes: the listener, the data threads
// and the pulls that the siblings tcp and same_host share. docs/protocol/data.md draws what crosses
// a connection.
//
//   auto transport = StreamTransport::Start(medium, std::move(listener), endpoints, limits);
//
// Threads: limits.data_threads loops, all signals blocked. Each connection belongs to one of them.
// Thread-safe. Destroy it on none of its own threads; pulls may outlive it and hear OnClosed before
// its destructor returns.
#ifndef TH_TRANSFER_STREAM_STREAM_TRANSPORT_H_
#define TH_TRANSFER_STREAM_STREAM_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/transfer/stream/event_loop.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/serving_table.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/transport.h"

namespace th::stream {

class StreamTransport final : public Transport {
 public:
  // `listener` is bound and listening; `endpoints` are where others reach it. INVALID_ARGUMENT: no
  // data thread, or more than kMaxDataThreads. RESOURCE_EXHAUSTED: no descriptor for one.
  static absl::StatusOr<std::unique_ptr<StreamTransport>> Start(
      std::shared_ptr<const Medium> medium, Socket listener, std::vector<Endpoint> endpoints,
      const TransportLimits& limits);
  ~StreamTransport() override;

  absl::string_view name() const override { return medium_->name(); }
  std::vector<Endpoint> endpoints() const override { return endpoints_; }
  absl::Status Reach(const Endpoint& endpoint) const override { return medium_->Reach(endpoint); }
  bool maps() const override { return medium_->maps(); }
  bool copies_by_device() const override { return medium_->copies_by_device(); }
  std::vector<std::string> left_out() const override { return medium_->left_out(); }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) override {
    return medium_->Attach(regions);
  }
  bool AddHolder(WorkerId worker, HolderDelegate* delegate) override {
    return table_->AddHolder(worker, delegate);
  }
  void RemoveHolder(WorkerId worker) override { table_->RemoveHolder(worker); }
  void FinishTransfer(TransferId transfer) override {
    table_->EndTransfer(transfer, ServingEnd::kAfterSegment);
  }
  void CutTransfer(TransferId transfer) override {
    table_->EndTransfer(transfer, ServingEnd::kNow);
  }
  std::unique_ptr<Pull> Open(PullTarget target, PullSink* sink) override;
  Counters counters() const override;

 private:
  using Loops = std::vector<std::shared_ptr<EventLoop>>;

  StreamTransport(std::shared_ptr<const Medium> medium, std::vector<Endpoint> endpoints,
                  TransportLimits limits, Loops loops);

  // Shared with the connections, which may end after the transport.
  const std::shared_ptr<const Medium> medium_;
  const std::vector<Endpoint> endpoints_;
  const TransportLimits limits_;
  const Loops loops_;
  const std::shared_ptr<ServingTable> table_;  // with the connections, and with who decides
  const std::shared_ptr<std::atomic<uint64_t>> bytes_received_ =
      std::make_shared<std::atomic<uint64_t>>(0);  // with the pulls
  std::atomic<size_t> next_loop_{0};
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_STREAM_TRANSPORT_H_
