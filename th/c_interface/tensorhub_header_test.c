/* The header as a user's program meets it, in C11 and (the same file) in C++20: it compiles without
 * a warning, and each _INIT macro sets its struct's size and leaves the rest zero. */
#include <stdio.h>
#include <stdlib.h>

#include "th/c_interface/tensorhub.h"

#define EXPECT_SIZED(options, last_field)                                                       \
  do {                                                                                          \
    if ((options).struct_size != sizeof(options) || (options).last_field != 0) {                \
      fprintf(stderr, "%s: struct_size is %zu of %zu, or " #last_field " is not 0\n", #options, \
              (options).struct_size, sizeof(options));                                          \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

/* In static memory too, which in C takes a constant. */
static const th_update_options kUpdate = TH_UPDATE_OPTIONS_INIT;

int main(void) {
  th_join_options join = TH_JOIN_OPTIONS_INIT;
  th_register_options registered = TH_REGISTER_OPTIONS_INIT;
  th_publish_options publish = TH_PUBLISH_OPTIONS_INIT;
  th_unpublish_options unpublish = TH_UNPUBLISH_OPTIONS_INIT;
  th_attach_options attach = TH_ATTACH_OPTIONS_INIT;
  th_attached_tensor tensors[2] = {TH_ATTACHED_TENSOR_INIT, TH_ATTACHED_TENSOR_INIT};
  EXPECT_SIZED(join, rdma_registered_limit_bytes);
  EXPECT_SIZED(registered, no_checksums);
  EXPECT_SIZED(publish, snapshot);
  EXPECT_SIZED(unpublish, offload_timeout);
  EXPECT_SIZED(kUpdate, when_seeding);
  EXPECT_SIZED(attach, timeout);
  EXPECT_SIZED(tensors[0], slice_begin);
  EXPECT_SIZED(tensors[1], slice_begin);
  return 0;
}
