// Equality of messages, for tests, where they do not have it themselves. All fields of every
// message are named here, so that a field which is added to one does not compile until someone has
// thought of carrying it.
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
// For a message that has its own equality: names its fields alone.
#define TH_WIRE_FIELDS(Type, ...)                                \
  [[maybe_unused]] inline void NameFieldsOf(const Type& value) { \
    [[maybe_unused]] const auto& [__VA_ARGS__] = value;          \
  }

inline bool operator==(const ShardLayout& x, const ShardLayout& y) {
  return x.digest() == y.digest();
}
inline bool operator==(const Alive&, const Alive&) { return true; }

TH_WIRE_FIELDS(ProtocolHello, a, b, c, d)
TH_WIRE_FIELDS(HeldVersion, a, b, c, d, e, f, g, h)
TH_WIRE_FIELDS(FinishedOperation, a, b, c, d, e, f, g, h)
TH_WIRE_FIELDS(AnnouncedBuffer, a, b, c, d, e, f, g, h, i, j, k, l)
TH_WIRE_FIELDS(ResumeClaim, a, b, c, d, e, f, g)
TH_WIRE_FIELDS(JoinRequest, a, b, c, d, e, f, g, h, i, j, k, l)
TH_WIRE_FIELDS(RegisterBuffer, a)
TH_WIRE_FIELDS(LayoutUpload, a)
TH_WIRE_FIELDS(StartOperation, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
TH_WIRE_FIELDS(ReadyToFill, a, b)
TH_WIRE_FIELDS(ShardSealed, a, b, c)
TH_WIRE_FIELDS(FillProgress, a, b, c, d, e)
TH_WIRE_FIELDS(RankDone, a, b, c)
TH_WIRE_FIELDS(RankFailed, a, b, c)
TH_WIRE_FIELDS(SourceFailed, a, b, c, d, e)
TH_WIRE_FIELDS(SourceSuspected, a, b, c, d)
TH_WIRE_FIELDS(Heartbeat, a)
TH_WIRE_FIELDS(Preempt, a)
TH_WIRE_FIELDS(BufferReset, a)
TH_WIRE_FIELDS(UnregisterBuffer, a)
TH_WIRE_FIELDS(RollBack, a)
TH_WIRE_FIELDS(SetRetention, a, b)
TH_WIRE_FIELDS(PinVersion, a, b, c, d)
TH_WIRE_FIELDS(ReleasePin, a, b, c)
TH_WIRE_FIELDS(RunCommand, a, b)

TH_WIRE_EQUALITY(Joined, a, b, c, d, e, f, g, h, i, j, k)
TH_WIRE_EQUALITY(Refused, a, b, c, d)
TH_WIRE_EQUALITY(LayoutWanted, a)
TH_WIRE_EQUALITY(BufferRegistered, a, b)
TH_WIRE_EQUALITY(OperationResolved, a, b, c, d, e)
TH_WIRE_FIELDS(AssignedSource, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(AssignSources, a, b, c, d, e, f)
TH_WIRE_EQUALITY(RootKnown, a, b, c)
TH_WIRE_EQUALITY(OperationFinished, a, b, c, d, e, f, g, h, i, j)
TH_WIRE_EQUALITY(PublicationRefused, a, b, c)
TH_WIRE_EQUALITY(GroupChanged, a, b)
TH_WIRE_FIELDS(CommandFinished, a, b, c, d)
TH_WIRE_EQUALITY(OffloadReleased, a)

TH_WIRE_EQUALITY(CatalogRank, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
TH_WIRE_FIELDS(TransportsUsed, a, b)
TH_WIRE_EQUALITY(CatalogReplica, a, b, c, d, e, f, g, h, i, j)
TH_WIRE_EQUALITY(CatalogVersion, a, b, c, d, e, f, g, h, i)
TH_WIRE_EQUALITY(CatalogModel, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(Catalog, a, b, c)

TH_WIRE_EQUALITY(RecentEvent, a, b, c, d, e, f, g, h)
TH_WIRE_EQUALITY(RecentEvents, a, b, c, d)

#undef TH_WIRE_EQUALITY
#undef TH_WIRE_FIELDS

}  // namespace th

#endif  // TH_WIRE_MESSAGE_EQUALITY_H_
