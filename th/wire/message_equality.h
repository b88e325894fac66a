// Equality of messages, for tests. Each names all fields of its struct, so that a field which is
// added to a message does not compile here until someone has thought of carrying it.
#ifndef TH_WIRE_MESSAGE_EQUALITY_H_
#define TH_WIRE_MESSAGE_EQUALITY_H_

#include <tuple>

#include "th/protocol/catalog.h"
#include "th/protocol/messages.h"

namespace th {

#define TH_WIRE_EQUALITY(Type, ...)                      \
  inline bool operator==(const Type& x, const Type& y) { \
    const auto tie = [](const Type& value) {             \
      const auto& [__VA_ARGS__] = value;                 \
      return std::tie(__VA_ARGS__);                      \
    };                                                   \
    return tie(x) == tie(y);                             \
  }

inline bool operator==(const ShardLayout& x, const ShardLayout& y) {
  return x.digest() == y.digest();
}
inline bool operator==(const Leave&, const Leave&) { return true; }
inline bool operator==(const Alive&, const Alive&) { return true; }

TH_WIRE_EQUALITY(ProtocolHello, a, b, c, d)
TH_WIRE_EQUALITY(HeldVersion, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(FinishedOperation, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(AnnouncedBuffer, a, b, c, d, e, f, g, h, i, j, k, l)
TH_WIRE_EQUALITY(ResumeClaim, a, b, c, d, e, f, g)
TH_WIRE_EQUALITY(JoinRequest, a, b, c, d, e, f, g, h, i, j, k, l)
TH_WIRE_EQUALITY(RegisterBuffer, a)
TH_WIRE_EQUALITY(LayoutUpload, a)
TH_WIRE_EQUALITY(StartOperation, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
TH_WIRE_EQUALITY(ReadyToFill, a, b)
TH_WIRE_EQUALITY(ShardSealed, a, b, c)
TH_WIRE_EQUALITY(FillProgress, a, b, c, d)
TH_WIRE_EQUALITY(RankDone, a, b, c)
TH_WIRE_EQUALITY(RankFailed, a, b, c)
TH_WIRE_EQUALITY(SourceFailed, a, b, c, d, e)
TH_WIRE_EQUALITY(SourceSuspected, a, b, c, d)
TH_WIRE_EQUALITY(Heartbeat, a)
TH_WIRE_EQUALITY(Preempt, a)
TH_WIRE_EQUALITY(BufferReset, a)
TH_WIRE_EQUALITY(UnregisterBuffer, a)
TH_WIRE_EQUALITY(RollBack, a)
TH_WIRE_EQUALITY(SetRetention, a, b)
TH_WIRE_EQUALITY(PinVersion, a, b, c, d)
TH_WIRE_EQUALITY(ReleasePin, a, b, c)
TH_WIRE_EQUALITY(RunCommand, a, b)

TH_WIRE_EQUALITY(Joined, a, b, c, d, e, f, g, h, i, j, k)
TH_WIRE_EQUALITY(Refused, a, b, c, d)
TH_WIRE_EQUALITY(LayoutWanted, a)
TH_WIRE_EQUALITY(BufferRegistered, a, b)
TH_WIRE_EQUALITY(OperationResolved, a, b, c, d, e)
TH_WIRE_EQUALITY(AssignedSource, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(AssignSources, a, b, c, d, e, f)
TH_WIRE_EQUALITY(RootKnown, a, b, c)
TH_WIRE_EQUALITY(OperationFinished, a, b, c, d, e, f, g, h, i, j)
TH_WIRE_EQUALITY(PublicationRefused, a, b, c)
TH_WIRE_EQUALITY(GroupChanged, a, b)
TH_WIRE_EQUALITY(CommandFinished, a, b, c, d)
TH_WIRE_EQUALITY(OffloadReleased, a)

TH_WIRE_EQUALITY(CatalogRank, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
TH_WIRE_EQUALITY(CatalogReplica, a, b, c, d, e, f, g, h, i, j)
TH_WIRE_EQUALITY(CatalogVersion, a, b, c, d, e, f, g, h, i)
TH_WIRE_EQUALITY(CatalogModel, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(Catalog, a, b, c)

TH_WIRE_EQUALITY(RecentEvent, a, b, c, d, e, f, g)
TH_WIRE_EQUALITY(RecentEvents, a, b, c, d)

#undef TH_WIRE_EQUALITY

}  // namespace th

#endif  // TH_WIRE_MESSAGE_EQUALITY_H_
