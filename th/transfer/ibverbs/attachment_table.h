// The registrations of attached memory: which attachment has which, and which holds an address.
//
//   AttachmentTable<Registration> table;
//   std::shared_ptr<const Registration> same = table.FindSame(key);  // else it is registered anew
//   const uint64_t attachment = table.Add({same});
//   const Registration* found = table.FindAt(address, [](const Registration& each) { ... });
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
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

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
  // found for its key, or none was found. No two of them have the same key.
  uint64_t Add(const std::vector<Shared>& registrations) {
    std::vector<Key>& keys = attachments_[++last_attachment_];
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
    for (const Key& key : removed.mapped()) {
      const auto at = entries_.find(key);
      if (--at->second.attachments > 0) continue;
      bytes_ -= at->second.registration->bytes();
      ended.push_back(std::move(at->second.registration));
      entries_.erase(at);
    }
    if (entries_.empty()) longest_ = 0;
    return ended;
  }

  // Of the registrations that begin at `address` or less than the longest one's bytes before it,
  // the nearest that `fits`; null: none does. Valid until Remove.
  template <typename Fits>
  const Registration* FindAt(uint64_t address, Fits fits) const {
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
  struct Entry {
    Shared registration;  // with callers of FindSame and Remove
    size_t attachments = 0;
  };
  struct ByAddress {
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
    bool operator()(uint64_t address, const Key& key) const { return address < key.first; }
  };

  std::map<Key, Entry, ByAddress> entries_;
  std::unordered_map<uint64_t, std::vector<Key>> attachments_;
  uint64_t last_attachment_ = 0;
  uint64_t bytes_ = 0;
  uint64_t longest_ = 0;  // no registration is longer
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_ATTACHMENT_TABLE_H_
