#include "th/registry_state/uplinks.h"

#include <algorithm>

#include "th/scheduler/link_rate.h"
#include "th/weights/segments.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

bool GetsOn(const Turn& turn, const Worker& reader) {
  const bool there = reader.connection.has_value() && !IsSilent(turn.state, reader, turn.now) &&
                     turn.now >= reader.suspected_until;
  return TH_MUTATE(kCountReadersThatStand, there, true);
}

// The bytes that each source of `reader` has still to send of what it lacks.
uint64_t ShareOf(const Buffer& reader) {
  if (reader.fill == nullptr || reader.content->complete || reader.sources.empty()) return 0;
  const uint64_t segments = std::max<uint64_t>(reader.segment_count, 1);
  const uint64_t held = std::min(reader.content->segments.count(), segments);
  // The last segment may be a shorter one: nothing depends on so little.
  return reader.bytes / segments * (segments - held) / reader.sources.size();
}

bool MakesWayFor(const Buffer& other, const Buffer& reader) {
  return IsSlower(other.worker->link.limit(), reader.worker->link.limit());
}

}  // namespace

uint64_t OutstandingBytes(const Turn& turn, const Worker& worker, const Buffer& reader) {
  uint64_t bytes = 0;
  for (const auto& [id, buffer] : worker.buffers) {
    if (buffer.shard == nullptr) continue;
    const Shard& shard = *buffer.shard;
    const auto readers = shard.readers_of.find(buffer.address);
    if (readers == shard.readers_of.end()) continue;
    for (const BufferAddress& address : readers->second) {
      const auto other = shard.holders.find(address);
      if (other == shard.holders.end() || other->second->worker == &worker) continue;
      if (MakesWayFor(*other->second, reader)) continue;
      if (GetsOn(turn, *other->second->worker)) bytes += ShareOf(*other->second);
    }
  }
  return bytes;
}

uint32_t ReadersThatKeepTheirPlace(const Buffer& source, const Buffer& reader) {
  const Shard& shard = *source.shard;
  const auto readers = shard.readers_of.find(source.address);
  if (readers == shard.readers_of.end()) return 0;
  uint32_t count = 0;
  for (const BufferAddress& address : readers->second) {
    const auto other = shard.holders.find(address);
    if (other == shard.holders.end() || !MakesWayFor(*other->second, reader)) ++count;
  }
  return count;
}

}  // namespace th::registry
