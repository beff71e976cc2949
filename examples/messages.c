/* messages.c -- the C core alone: several children share several helpers.
 *
 * Each child writes a row of numbers into its own arena and asks for their sum by sending a
 * message of 16 bytes; a helper reads the row where it lies, prints what it found, and writes
 * the sum beside it. No number travels through a pipe.
 *
 *   make example            builds and runs it
 */
#include <stdio.h>
#include <stdlib.h>

#include "shmgpu.h"

enum { CHILDREN = 4, HELPERS = 2, MESSAGES = 3, NUMBERS = 8 };

struct request { /* the parameter block: lies in the child's arena, as do the numbers */
  const double *numbers;
  size_t count;
  int child, turn;
  double sum; /* the helper's answer */
};

/* Runs in whichever helper is free, on the child's own memory. */
static void sum_numbers(void *params) {
  struct request *request = params;
  /* A pointer found in a block is the child's word: look before following it. */
  if (!shm_in_arena(request->numbers, request->count * sizeof *request->numbers)) return;
  double sum = 0;
  for (size_t i = 0; i < request->count; i++) sum += request->numbers[i];
  request->sum = sum;
  printf("helper %d: child %d, message %d: [%g, %g, ... %g] adds up to %g\n",
         shm_get_helper_id(), request->child, request->turn, request->numbers[0],
         request->numbers[1], request->numbers[request->count - 1], sum);
}

static int child_main(void *arg) {
  int first = *(int *)arg, status = SHM_OK;
  double *numbers = shm_malloc(NUMBERS * sizeof *numbers);
  struct request *request = shm_malloc(sizeof *request);
  if (numbers == NULL || request == NULL) {
    fprintf(stderr, "child %d: %s\n", shm_get_child_id(), shm_status_text(shm_last_status()));
    return 1;
  }
  for (int turn = 0; turn < MESSAGES && status == SHM_OK; turn++) {
    double expected = 0;
    for (int i = 0; i < NUMBERS; i++) {
      numbers[i] = first + 10 * turn + i;
      expected += numbers[i];
    }
    *request = (struct request){numbers, NUMBERS, shm_get_child_id(), turn, 0};
    shm_msg_t message = {.func_ptr = sum_numbers, .params = request};
    status = shm_send_msg(&message);
    if (status == SHM_OK) status = shm_read_msg(&message);
    if (status == SHM_OK && request->sum != expected) {
      fprintf(stderr, "child %d: %g is not %g\n", shm_get_child_id(), request->sum, expected);
      return 1;
    }
  }
  if (status != SHM_OK) fprintf(stderr, "child: %s\n", shm_status_text(status));
  shm_free(request);
  shm_free(numbers);
  return status == SHM_OK ? 0 : 1;
}

int main(void) {
  int firsts[CHILDREN];
  shm_main_bundle_t bundles[CHILDREN];
  for (int i = 0; i < CHILDREN; i++) {
    firsts[i] = 100 * i;
    bundles[i] = (shm_main_bundle_t){.main_func = child_main, .arg = &firsts[i]};
  }
  int status = shm_register(sum_numbers, "sum_numbers", sizeof(struct request));
  if (status == SHM_OK) status = shm_launch(CHILDREN, bundles, 1 << 20, HELPERS);
  if (status != SHM_OK) fprintf(stderr, "%s %s\n", shm_status_text(status), shm_error_detail());
  return status == SHM_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
