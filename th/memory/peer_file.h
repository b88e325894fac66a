// A file in memory of another process of this host, opened by the descriptor that it has there.
//
//   const OpenedPeerFile opened = OpenPeerFile(owner, {descriptor, inode}, PeerFileAccess::kRead);
//   if (opened.fd < 0 && opened.error == 0) ...   // it is another file by now
//   if (opened.fd < 0) ...                        // opened.call failed: strerror(opened.error)
//   ... close(opened.fd) ...
//
// The owner may close the descriptor at any time and get its number for something else, so the file
// is known by its inode, and looked at before it is opened too: to open a device or a pipe has side
// effects. Another file system's file may have the same inode, so callers check seals, size or
// content as well. Thread-safe.
#ifndef TH_MEMORY_PEER_FILE_H_
#define TH_MEMORY_PEER_FILE_H_

#include <sys/types.h>

#include <cstdint>

namespace th {

// How a process names a file of its own to others.
struct PeerFile {
  int file_descriptor = -1;
  uint64_t inode = 0;
};

enum class PeerFileAccess : uint8_t { kRead, kReadWrite };

struct OpenedPeerFile {
  int fd = -1;            // the caller's to close; -1: it was not opened
  int error = 0;          // errno of `call`; 0 with no `fd`: the descriptor names another file
  const char* call = "";  // "stat" or "open"
};

OpenedPeerFile OpenPeerFile(pid_t owner, const PeerFile& file, PeerFileAccess access);

}  // namespace th

#endif  // TH_MEMORY_PEER_FILE_H_
