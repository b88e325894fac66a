/* A trainer of one rank: publishes two versions of its weights, one after the other. */
#include <stdint.h>
#include <stdio.h>

#include "th/c_interface/tensorhub.h"

#define ROWS 1024
#define COLUMNS 1024

static float values[ROWS * COLUMNS];

static th_status Train(th_client* hub) {
  const int64_t shape[] = {ROWS, COLUMNS};
  th_tensor tensor = {.struct_size = sizeof(th_tensor)};
  tensor.name = "layer.weight";
  tensor.dtype = "F32";
  tensor.shape = shape;
  tensor.dimensions = 2;
  tensor.data = values;

  th_buffer* weights = NULL;
  th_status status = th_register(hub, &tensor, 1, NULL, &weights); /* copies nothing */
  for (int step = 1; status == TH_OK && step <= 2; ++step) {
    for (size_t i = 0; i < ROWS * COLUMNS; ++i) values[i] = (float)step;
    char label[16];
    snprintf(label, sizeof(label), "%d", step);
    status = th_publish(weights, label, NULL); /* `values` must not be written from here on */
    if (status == TH_OK) status = th_await_published(weights, NULL);
    if (status != TH_OK) break;
    printf("published %d; Enter ends it\n", step);
    fflush(stdout);
    for (int c = getchar(); c != '\n' && c != EOF;) c = getchar(); /* rollouts read meanwhile */
    status = th_unpublish(weights, NULL); /* TH_OK: `values` may be written again */
  }
  if (status != TH_OK) fprintf(stderr, "trainer: %s\n", th_last_error());
  th_buffer_free(weights);
  return status;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: trainer_c HOST:PORT\n");
    return 2;
  }
  th_join_options join = TH_JOIN_OPTIONS_INIT;
  join.server = argv[1];
  join.run = "example";
  join.model = "tiny";
  join.group = "trainer";
  th_client* hub = NULL;
  if (th_join(&join, &hub) != TH_OK) {
    fprintf(stderr, "trainer: %s\n", th_last_error());
    return 1;
  }
  const th_status status = Train(hub);
  th_client_free(hub);
  return status == TH_OK ? 0 : 1;
}
