// The holders of a shard, the candidates among them that readers may be given as sources, and who
// fills from whom. This is the only code that gives a buffer content or takes it, or changes a
// replica's phase or a shard's edges, so that the indices over them agree (but a
// suspicion that has ended by time alone may count in a place until the next Reindex). Others may
// change fields of a Content that is there; where candidacy depends on the field, they call
// Reindex.
//
// A holder is a candidate for new readers exactly when it is no streaming reader's, its stream is
// up, its version is published, its replica holds or fills that version, its content is agreed,
// replica_agreed and not refused (Content in state.h), and it is complete or its replica is being
// filled.
#ifndef TH_REGISTRY_STATE_HOLDERS_H_
#define TH_REGISTRY_STATE_HOLDERS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"
#include "th/topology/location.h"

namespace th::registry {

// The shard of the version in that form with that layout; created when there is none.
Shard& EnsureShard(Turn& turn, Version& version, const ShardKey& key);
// Null when the version has no such shard.
Shard* FindShard(Version& version, const ShardKey& key);
ShardKey ShardKeyOf(const Buffer& buffer);

// Frees the label for another version; the version's own info keeps it. (ClearLabel empties that
// too.)
void UnindexLabel(Version& version);
// Frees the published version's label, and empties it.
void ClearLabel(Version& version);

// The published version takes its label from the version that has it, if any. That version is
// without a label then, and is erased where no worker has announced it since the restart and
// nothing needs it.
void ClaimLabel(Turn& turn, Version& version);

// Forgets a version that no buffer holds, fills or has displaced.
void EraseVersion(Turn& turn, Version& version);

// Replaces the content of `buffer`. Its readers and its own sources stay when the shard stays. If
// the new content is committed, Buffer::displaced is forgotten. If not, committed content that it
// replaces moves there, unless that was refused; where nothing moves, what is there stays.
void SetContent(Turn& turn, Buffer& buffer, Version& version, Content content);
// Removes the content and Buffer::displaced. Readers lose the buffer as a source (DropSource); its
// own fill ends.
void ClearContent(Turn& turn, Buffer& buffer);
// As ClearContent, but keeps committed content in Buffer::displaced: the rank may announce it
// again.
void DisplaceContent(Turn& turn, Buffer& buffer);
// Forgets Buffer::displaced: its bytes are gone for good.
void ForgetDisplaced(Buffer& buffer);
// The operation that brought the content has ended well for the group: the rank cannot come back to
// what it displaced, which is forgotten.
void CommitContent(Buffer& buffer);
// The content differs from the version's, or is no part of a whole replica any more: it stays
// there, and is no source ever again. Readers lose it as a source, without kLastHolderGrace.
// `last` is noted as what became of the last replica, where it was that.
void RefuseContent(Turn& turn, Buffer& buffer, const LastHolder& last);
// Forgets the fill: the edges to its sources, its two deadlines, its place among the waiting.
void ClearFill(Turn& turn, Buffer& buffer);

// Moves the replica to `phase`, for `version` (none by default), and reindexes its buffers.
void SetPhase(Turn& turn, Replica& replica, ReplicaPhase phase,
              VersionSequence version = VersionSequence());
// The replica's group copies `version` into its site; an earlier reservation ends.
void Reserve(Turn& turn, Replica& replica, const SiteCopyReservation& reservation);
// The reservation has lapsed or been fulfilled. Nothing happens where there is none.
void EndReservation(Turn& turn, Replica& replica);
// The whole replica stops being a source, for readers that pull from it now too.
void InvalidateReplica(Turn& turn, Replica& replica);

// Call after a change of anything that candidacy (connection, content) or the place among the
// candidates (suspicion, readers) depends on.
void Reindex(Turn& turn, Buffer& buffer);
void ReindexAll(Turn& turn, Worker& worker);
// After a change of the worker's link: reindexes its buffers, and the sources that they read from.
void ReindexAround(Turn& turn, Worker& worker);
// Its place among the candidates, if it is one. `now` decides only whether it is suspected.
CandidateKey KeyOf(const RegistryState& state, const Buffer& buffer, absl::Time now);
bool IsCandidate(const Buffer& buffer);
// True when there is a shard of the form, and `is_so` of each.
template <typename Predicate>
bool EveryShardOf(const Version& version, const std::string& form, Predicate is_so) {
  const auto first = version.shards.lower_bound(ShardKey{form, Digest()});
  auto it = first;
  while (it != version.shards.end() && it->first.form == form && is_so(it->second)) ++it;
  const bool ended = it == version.shards.end() || it->first.form != form;
  return ended && it != first;
}
// True when each shard of the form has a holder that has all of it, or whose replica is filling it;
// whether it may serve anybody now does not matter.
bool IsSomewhere(const Version& version, const std::string& form);
// True when the worker that has this content may still send the root of its shard.
bool MaySendRoot(const Content& content);
// True when the shard's root is unknown and nobody is left who could tell it: no reader can
// complete it.
bool IsUnsealable(const Shard& shard);

// The edges of `reader` from here on. The caller has made sure that they close no cycle.
void SetSources(Turn& turn, Shard& shard, const BufferAddress& reader,
                std::vector<BufferAddress> sources);
// How long a reader that has lost a whole source may still say that it has everything: it may have
// received its last segment just before. Reporting a source that it still has as failed ends the
// grace, because such a reader lacks something (ReportSourceFailed).
inline constexpr absl::Duration kLastHolderGrace = absl::Seconds(1);
// Takes `source` from all its readers; those with a fill are assigned others at the end of the
// turn. If the source was whole, they have kLastHolderGrace, in which the lack of any holder does
// not end them, unless nobody can tell the root any more (IsUnsealable).
void DropSource(Turn& turn, Shard& shard, const BufferAddress& source, bool was_whole);
// Null: nobody holds the shard there.
Buffer* HolderAt(const Shard& shard, const BufferAddress& address);
// The holders that fill from `source`.
std::vector<Buffer*> ReadersOf(const Shard& shard, const BufferAddress& source);
// The distance between their workers, by topology alone: two buffers of one worker are no nearer
// than two workers of one host.
Distance DistanceTo(const Buffer& reader, const Buffer& source);
// Empty where `reader` is no holder. Valid until the reader's edges change.
const std::vector<BufferAddress>& SourcesOf(const Shard& shard, const BufferAddress& reader);
bool FillsFrom(const Shard& shard, const BufferAddress& reader, const BufferAddress& source);
uint32_t ReaderCount(const Shard& shard, const BufferAddress& source);
// True when an edge from `reader` up to `source` would close a cycle.
bool WouldCycle(const Shard& shard, const BufferAddress& reader, const BufferAddress& source);

// The waiting readers of the shard look again at the end of the turn.
void WakeWaiting(Turn& turn, Shard& shard);
// Readers of `source` are assigned anew at the end of the turn.
void MoveReadersOf(Turn& turn, const Shard& shard, const BufferAddress& source);
// The same for every holder that leaves: there may be somebody else now.
void MoveReadersOfLeaving(Turn& turn, const Shard& shard);
// Sets when the fill looks for sources again by itself; InfiniteFuture: not at all.
void SetRetry(Turn& turn, Buffer& buffer, absl::Time at);
// Sets when the throughput of its sources is looked at again; likewise.
void SetRecheck(Turn& turn, Buffer& buffer, absl::Time at);

// Names of the sets of candidates that a reader or holder there belongs to, nearest first; the last
// one is kAllCandidates.
std::vector<std::string> PlacesOf(const Location& location);
inline constexpr absl::string_view kAllCandidates = "";
// A further set beside the places: all complete candidates. They can feed any reader.
inline constexpr absl::string_view kCompleteCandidates = "complete";
// The place of the site; kAllCandidates where the site has no name.
std::string SitePlaceOf(const Location& location);
// A place that holds exactly the candidates within `farthest` of the reader: its host, its rack.
struct NearPlace {
  std::string name;
  Distance farthest;
};
std::vector<NearPlace> NearPlacesOf(const Location& location);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_HOLDERS_H_
