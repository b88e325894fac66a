// The destructor's part in a forked child: the object's threads exist in the parent only, and its
// locks may be held by them for ever, so its memory is given up as it is.
#ifndef TH_CLIENT_LEAVE_BEHIND_H_
#define TH_CLIENT_LEAVE_BEHIND_H_

#include <utility>

namespace th {

template <typename Pointer>
void LeaveBehind(Pointer pointer) {
  new Pointer(std::move(pointer));
}

}  // namespace th

#endif  // TH_CLIENT_LEAVE_BEHIND_H_
