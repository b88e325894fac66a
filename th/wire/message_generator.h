// Valid messages with every field filled at random, the same ones for the same seed. For tests.
#ifndef TH_WIRE_MESSAGE_GENERATOR_H_
#define TH_WIRE_MESSAGE_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "th/protocol/catalog.h"
#include "th/protocol/messages.h"

namespace th {

// Not thread-safe.
class MessageGenerator {
 public:
  explicit MessageGenerator(uint32_t seed) : random_(seed) {}

  // The alternative with index `alternative` of the variant.
  WorkerMessage MakeWorkerMessage(size_t alternative);
  ServerMessage MakeServerMessage(size_t alternative);
  Catalog MakeCatalog();
  RecentEvents MakeEvents();
  RunCommand MakeRunCommand();
  VersionSelector MakeSelector();

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  bool Coin() { return Below(2) == 0; }
  uint64_t Number();
  uint32_t SmallNumber() { return static_cast<uint32_t>(Number()); }
  std::string Name();
  std::string MaybeName();
  std::string Text();
  std::string RawBytes();
  absl::Duration SomeDuration();
  absl::Status SomeStatus();
  absl::Status Failure();
  Digest SomeDigest();
  VersionLabel Label();
  VersionInfo Version();
  Attributes SomeAttributes();
  SegmentSet Segments();
  std::vector<SourceThroughput> Throughputs();
  Endpoint SomeEndpoint();
  Location SomeLocation();
  RankName SomeRank();
  BufferAddress Buffer();
  OperationKey Key();
  ProtocolHello Hello();
  HeldVersion Held();
  RootReceipt SomeReceipt();
  AnnouncedBuffer Announced();
  AssignedSource Source();
  ShardLayout Layout();
  JoinRequest Join();
  StartOperation Start();
  CatalogRank OneRank();
  CatalogPin Pin();
  CatalogReplica Replica();
  EventId SomeEvent();
  PassedOver SomePassedOver();
  std::optional<TransportsUsed> SomeTransports();
  FillCost SomeFillCost();
  RankCost SomeCost();
  ModelTotals SomeTotals();
  template <typename Enum>
  Enum Choose(Enum first, Enum last) {
    const uint64_t low = static_cast<uint64_t>(first);
    return static_cast<Enum>(low + Below(static_cast<uint64_t>(last) - low + 1));
  }

  std::mt19937_64 random_;
};

}  // namespace th

#endif  // TH_WIRE_MESSAGE_GENERATOR_H_
