// The registrations of attached memory: which attachment has which, and which holds an address.
//
//   AttachmentTable<Registration> table;
//   std::shared_ptr<const Registration> same = table.FindSame(key);  // else it is registered anew
//   const uint64_t attachment = table.Add({same}, owner);
//   const Registration* found = table.FindAt(address, owner, [](const Registration& each) { ... });
//   table.Remove(attachment);  // what no other attachment has ends with the result
//
// A Registration has a Key, which begins with the address of its memory and says of two whether
// they are the same, a key() and a number of bytes().
//
// Not thread-safe.
#ifndef TH_TRANSFER_IBVERBS_ATTACHMENT_TABLE_H_
#define TH_TRANSFER_IBVERBS_ATTACHMENT_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "th/transfer/ibverbs/memory_owner.h"

namespace th::ibverbs {

template <typename Registration>
class AttachmentTable {
 public:
  using Key = typename Registration::Key;  // a pair; the first is the address
  using Shared = std::shared_ptr<const Registration>;

  // Null: no attachment has it.
  Shared FindSame(const Key& key) const {
    const auto at = entries_.find(key);
    return at == entries_.end() ? nullptr : at->second.registration;
  }

  // Returns the number of a new attachment, which has these: each is the one that FindSame has
  // found for its key, or none was found. They are in order of their addresses, and do not overlap.
  uint64_t Add(const std::vector<Shared>& registrations, MemoryOwner owner = {}) {
    Attachment& attachment = attachments_[++last_attachment_];
    attachment.owner = owner;
    owned_.emplace(owner, last_attachment_);
    std::vector<Key>& keys = attachment.keys;
    keys.reserve(registrations.size());
    for (const Shared& registration : registrations) {
      keys.push_back(registration->key());
      const auto [at, is_new] = entries_.try_emplace(keys.back(), Entry{registration});
      ++at->second.attachments;
      if (!is_new) continue;
      bytes_ += registration->bytes();
      longest_ = std::max(longest_, registration->bytes());
    }
    return last_attachment_;
  }

  // Forgets an attachment and returns the registrations that no other has. Unknown numbers are
  // ignored.
  std::vector<Shared> Remove(uint64_t attachment) {
    std::vector<Shared> ended;
    const auto removed = attachments_.extract(attachment);
    if (removed.empty()) return ended;
    const auto [first, last] = owned_.equal_range(removed.mapped().owner);
    owned_.erase(std::find_if(
        first, last, [attachment](const auto& owned) { return owned.second == attachment; }));
    for (const Key& key : removed.mapped().keys) {
      const auto at = entries_.find(key);
      if (--at->second.attachments > 0) continue;
      bytes_ -= at->second.registration->bytes();
      ended.push_back(std::move(at->second.registration));
      entries_.erase(at);
    }
    if (entries_.empty()) longest_ = 0;
    return ended;
  }

  // The nearest registration that `fits`, of this owner's attachments that begin at `address` or
  // before it; of no owner in particular, of all that begin less than the longest one's bytes
  // before it. Null: none does. Valid until Remove; an owner's own stays as long as one
  // of its attachments does.
  template <typename Fits>
  const Registration* FindAt(uint64_t address, MemoryOwner owner, Fits fits) const {
    if (owner != MemoryOwner()) return FindOwn(address, owner, fits);
    for (auto at = entries_.upper_bound(address); at != entries_.begin();) {
      --at;
      if (address - at->first.first >= longest_) break;
      if (fits(*at->second.registration)) return at->second.registration.get();
    }
    return nullptr;
  }

  size_t attachments() const { return attachments_.size(); }
  size_t registrations() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }  // of the registrations

 private:
  struct Attachment {
    std::vector<Key> keys;  // in order
    MemoryOwner owner;
  };
  struct Entry {
    Shared registration;  // with callers of FindSame and Remove
    size_t attachments = 0;
  };
  struct ByAddress {
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
    bool operator()(uint64_t address, const Key& key) const { return address < key.first; }
  };

  template <typename Fits>
  const Registration* FindOwn(uint64_t address, MemoryOwner owner, Fits fits) const {
    for (auto [at, last] = owned_.equal_range(owner); at != last; ++at) {
      const std::vector<Key>& keys = attachments_.at(at->second).keys;
      const auto behind = std::upper_bound(keys.begin(), keys.end(), address, ByAddress());
      if (behind == keys.begin()) continue;
      const Registration& nearest = *entries_.find(*std::prev(behind))->second.registration;
      if (fits(nearest)) return &nearest;
    }
    return nullptr;
  }

  std::map<Key, Entry, ByAddress> entries_;
  std::unordered_map<uint64_t, Attachment> attachments_;
  std::multimap<MemoryOwner, uint64_t> owned_;  // the attachments of each
  uint64_t last_attachment_ = 0;
  uint64_t bytes_ = 0;
  uint64_t longest_ = 0;  // no registration is longer
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_ATTACHMENT_TABLE_H_
