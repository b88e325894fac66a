// The folders that a follower writes, one a version, below one folder.
//
//   const VersionFolders folders("/models/followed", key);
//   folders.RemoveUnfinished();                     // at the start
//   SaveModel(model, version, key, folders.PathOf(version), &stop);
//   folders.RemoveOlder(2, folders.PathOf(version));
//
// A folder is removed only if it is certain that a follower of this model wrote it: by its name, by
// what its files say, and as it has no other files.
#ifndef TH_WORKER_VERSION_FOLDERS_H_
#define TH_WORKER_VERSION_FOLDERS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "th/identifiers/identifiers.h"
#include "th/weights/version.h"

namespace th {

class VersionFolders {
 public:
  // `is_withdrawn` says whether a roll-back has withdrawn a version. RemoveOlder asks it where
  // there is something to remove, from the newest on, and no more once enough versions stand.
  VersionFolders(
      std::string into, ModelKey key,
      std::function<bool(VersionSequence)> is_withdrawn = [](VersionSequence) { return false; });

  // "INTO/1.2-step-7".
  std::string PathOf(const VersionInfo& version) const;
  // Removes the folders that followers left which were killed while they wrote. Returns the folders
  // that are gone.
  std::vector<std::string> RemoveUnfinished() const;
  // Removes all but the newest `keep` versions, at least one. `current` is one of them whatever its
  // age (an older version may be current after a roll-back); empty: none is. Withdrawn ones count
  // as older than all others. Returns the folders that are gone.
  std::vector<std::string> RemoveOlder(size_t keep, const std::string& current) const;

 private:
  struct Folder {
    VersionSequence sequence;
    std::string path;
  };
  // The newest first, without `current`.
  std::vector<Folder> OursBut(const std::string& current) const;
  bool IsOurs(const std::string& path, VersionSequence sequence) const;

  const std::string into_;
  const ModelKey key_;
  const std::function<bool(VersionSequence)> is_withdrawn_;
};

}  // namespace th

#endif  // TH_WORKER_VERSION_FOLDERS_H_
