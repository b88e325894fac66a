/* A rollout of one rank: moves to two versions, as they come, and says what it holds. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "th/c_interface/tensorhub.h"

#define ROWS 1024
#define COLUMNS 1024

static float values[ROWS * COLUMNS];

static th_status Serve(th_client* hub) {
  const int64_t shape[] = {ROWS, COLUMNS};
  th_tensor tensor = {.struct_size = sizeof(th_tensor)};
  tensor.name = "layer.weight";
  tensor.dtype = "F32";
  tensor.shape = shape;
  tensor.dimensions = 2;
  tensor.data = values;

  th_buffer* weights = NULL;
  th_status status = th_register(hub, &tensor, 1, NULL, &weights);
  for (int moves = 0; status == TH_OK && moves < 2;) {
    th_outcome outcome = TH_NONE;
    status = th_update(weights, "latest", NULL, &outcome, NULL);
    if (status == TH_OK && outcome == TH_MOVED) {
      char* version = NULL; /* JSON */
      status = th_buffer_version(weights, &version);
      if (status != TH_OK) break;
      printf("version %s: every weight is %g\n", version, values[0]);
      fflush(stdout);
      th_string_free(version);
      ++moves;
    }
    const struct timespec a_while = {.tv_sec = 0, .tv_nsec = 100000000};
    nanosleep(&a_while, NULL); /* an engine answers requests here */
  }
  if (status != TH_OK) fprintf(stderr, "rollout: %s\n", th_last_error());
  th_buffer_free(weights);
  return status;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: rollout_c HOST:PORT GROUP\n");
    return 2;
  }
  th_join_options join = TH_JOIN_OPTIONS_INIT;
  join.server = argv[1];
  join.run = "example";
  join.model = "tiny";
  join.group = argv[2];
  th_client* hub = NULL;
  if (th_join(&join, &hub) != TH_OK) {
    fprintf(stderr, "rollout: %s\n", th_last_error());
    return 1;
  }
  const th_status status = Serve(hub);
  th_client_free(hub);
  return status == TH_OK ? 0 : 1;
}
