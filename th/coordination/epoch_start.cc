#include "th/coordination/epoch_start.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/time/civil_time.h"

namespace th {
namespace {

// A new state's epochs stay below what a claim may name, whatever the clock says.
constexpr int64_t kLastSecond = kLastEpoch.value / 2;

int64_t SecondsSinceStartOf2026(absl::Time now) {
  static const absl::Time start = absl::FromCivil(absl::CivilYear(2026), absl::UTCTimeZone());
  return std::clamp(absl::ToInt64Seconds(now - start), int64_t{0}, kLastSecond);
}

}  // namespace

Epoch EpochAfter(std::optional<Epoch> stored, absl::Time now) {
  const Epoch next = stored.has_value() ? stored->Next() : Epoch(1);
  return std::max(next, Epoch(static_cast<uint32_t>(SecondsSinceStartOf2026(now))));
}

void NameCluster(StateIdentity& identity, const std::function<uint64_t()>& random) {
  while (identity.cluster == ClusterId()) identity.cluster = ClusterId(random());
  for (size_t i = 0; i < identity.key.bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t drawn = random();
    for (size_t byte = 0; byte < sizeof(drawn); ++byte) {
      identity.key.bytes[i + byte] = static_cast<uint8_t>(drawn >> (8 * byte));
    }
  }
}

void BeginEpochOf(StateIdentity& identity, EpochId epoch_id) {
  identity.epoch_ids.push_back(epoch_id);
  if (identity.epoch_ids.size() > kMaxEpochsKept)
    identity.epoch_ids.erase(identity.epoch_ids.begin());
  ++identity.of_this_process;
}

uint64_t RandomFromSystem() {
  uint64_t value = 0;
  size_t filled = 0;
  while (filled < sizeof(value)) {
    const ssize_t count =
        getrandom(reinterpret_cast<char*>(&value) + filled, sizeof(value) - filled, 0);
    if (count < 0 && errno != EINTR) std::abort();
    if (count > 0) filled += static_cast<size_t>(count);
  }
  return value;
}

}  // namespace th
