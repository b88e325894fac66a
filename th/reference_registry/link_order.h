// Readers change places in the graph of fills because of the rates of their own links: a chain goes
// from fast links to slow ones, so that nobody gets less than its own link and its source's uplink
// give.
//
// What is known of a worker's link is in Worker::link (th/scheduler/link_rate.h). A limit is noted
//  - where another reader of the same source gets kFasterBy as much at the same time;
//  - where the reader left its source for another one, and is no better off (throughput.h);
//  - where the throughput drops from a source to its reader, which has readers of its own: they
//  take
//    its place, and it goes to the end. The limit is one for a trial until the next reader of that
//    source has told its throughput, and is kept from then on, whatever that is: at the end of the
//    chain the reader costs nobody anything. If the next one gets no more, the source may be to
//    blame, and is left as throughput.h has it; after kMaxTrials such trials the limits are
//    forgotten;
//  - where the throughput drops to a reader at the end of a chain, and it has no better source.
// Where everybody gets what the first reader below a complete holder gets, either of the two may
// hold them back. So that reader steps aside for a trial, if that costs little: the shard has many
// segments left, or this is not the first version that comes from that holder.
// A link that turns out to carry more has no limit any more.
//
// All moves are graceful switches, and none closes a cycle: the scheduler chooses. Each goes from a
// slower link to a faster one, or from a place that is shared with a faster reader to one that is
// not; a move lets only those behind slower links look again. So they end.
#ifndef TH_REFERENCE_REGISTRY_LINK_ORDER_H_
#define TH_REFERENCE_REGISTRY_LINK_ORDER_H_

#include <cstdint>

#include "absl/time/time.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// How many readers in turn may get no more than the one before in their place: then it is the
// source's uplink that limits them. Every kLinkRateLasts one more is tried.
inline constexpr uint32_t kMaxTrials = 3;
// A trial costs everybody below a segment or three: in the first version it needs so many missing.
inline constexpr uint64_t kSegmentsForATrial = 256;
// Several readers that step aside together cost no more than this part of what is missing.
inline constexpr double kTrialPartOfRest = 0.04;
// A trial is made only while what is missing takes at least so long.
inline constexpr absl::Duration kTrialIsWorth = absl::Seconds(1);
// How often a reader that should make way looks for a place.
inline constexpr absl::Duration kLookForPlace = absl::Milliseconds(250);
// A reader makes way to a source that lacks no more of what the reader has than arrives there in
// this time, and in this part of what the reader still needs.
inline constexpr absl::Duration kWaitsInNewPlace = absl::Seconds(2);
inline constexpr double kWaitsPartOfRest = 0.15;

// The worker's link held it to `rate`, in bytes a second. Those that fill from it and have faster
// links leave it, and it makes way for others itself.
void NoteLimitedLink(Turn& turn, Buffer& reader, double rate);
// Forgets the limits of the shard's holders that are about `rate`: something else held them to it.
// O(holders), and seldom.
void ForgetLimits(Turn& turn, const Shard& shard, double rate);
// The bytes that the buffer, which has content, holds by now, if it gets on as it reported last.
uint64_t ExpectedBytes(const Turn& turn, const Buffer& buffer);
// The reader has received at least `rate`, in bytes a second.
void NoteReceived(Turn& turn, Buffer& reader, double rate);

// The reader leaves sources that are all behind slower links than its own, if another source has
// room for it. False: it keeps what it has.
bool Overtake(Turn& turn, Buffer& reader);
// The reader, which shares its source with one behind a faster link, goes to a source that has no
// such reader; it looks again later if that one has too little yet.
void MakeWay(Turn& turn, Buffer& reader);
// The reader gets `rate`, much less than its source has to give: its readers take its place for a
// trial. False: it has none that could; nothing has changed.
bool StepAside(Turn& turn, Buffer& reader, Buffer& source, double rate);
// The reader stands alone below `source`, gets `rate` and nobody gets more: others may be tried.
void TryAnother(Turn& turn, Buffer& reader, Buffer& source, double rate);
// Ends the trial that another reader began below `source` by stepping aside, now that this one has
// its place there and gets `rate` at most. What was noted of the other's link for the trial is
// noted for good, unless trials have shown that it is the source's uplink: then the limits that are
// about `rate` are forgotten. True: this one gets no more either, so the source may be to blame.
// False: it gets more, or there is no trial that it could end. Each trial ends once.
bool ConcludeTrial(Turn& turn, const Buffer& reader, Buffer& source, double rate);
// True when somebody fills from the reader who may have a faster link.
bool HoldsBackOthers(const Buffer& reader);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_LINK_ORDER_H_
