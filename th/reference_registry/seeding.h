// How a version comes into a site that lacks it: once, by one group, its *seeder*.
//
// Nothing appoints a seeder but the update itself. A group's update that finds nobody in the
// group's site who holds its shards whole, and nobody there who is filling them, goes on and so is
// the seeder; until it ends, either way, or its group loses a rank, others of the site can be told
// that the version is being seeded. The one after it resumes from what the site has: partial
// holders are sources. So the lease of a seeder is its operation. One thing outlives an operation:
// with kCopy the answer ends it, and the copy is another update, so the group's *reservation*
// stands for the fill in between (kSiteCopyReservationLasts).
//
//   when_seeding  somebody brings the shards   nobody does
//   kWait         pulls from them              fills its buffers: is the seeder
//   kSkip         not available (kSeeding)     fills its buffers: is the seeder
//   kCopy         not available (kSeeding)     not available with site_copy: is to copy (below)
//
// To copy: each rank receives the version into host memory, by an update of a buffer of its own,
// and updates from there later. A group that cannot does as with kSkip. Where a group's ranks are
// in several sites or in none that is known, and where its site has every shard that it lacks (as
// the publisher's has), an update just runs. That nobody else crosses over to another site is the
// scheduler's rule 3.
//
// A copy is needed while it fills, while somebody pulls from it, and until a replica that is no
// copy holds the version in its site. Its own group's update to another version ends it before.
#ifndef TH_REFERENCE_REGISTRY_SEEDING_H_
#define TH_REFERENCE_REGISTRY_SEEDING_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// From the word that a group is to copy until its copy has begun to fill.
inline constexpr absl::Duration kSiteCopyReservationLasts = absl::Seconds(5);
// A group that was told to copy so often without moving since (its copies failed, or newer versions
// came) fills its own buffers.
inline constexpr uint32_t kMaxCopiesUnused = 2;
// Replicas of a site that are looked at for one that fills a shard. They mostly have the same ones.
inline constexpr size_t kMaxSiteCopiesLookedAt = 16;

// Ends the replica's update to `version`, which is about to begin, as not available where the table
// above says so. Whether it did. O(ranks of the group).
bool EndIfSeeding(Turn& turn, Replica& replica, const Transaction& transaction, Version& version);

// The replica's group wants `version`: its copies of others are of no use to it any more.
void LoseInterestInOthers(Turn& turn, const Replica& replica, VersionSequence version);

// True when a replica of site copies is of use, retention aside.
bool SiteCopyIsOfUse(const Replica& replica);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_SEEDING_H_
